"""Training loops written by hand in JAX for λ log E exp(ℓ/λ): what nestax is measured against.

Every method is written for this one problem: an inner level with one number, u = E exp(ℓ/λ), and an
outer one without draws, λ log u. So derivatives are multiples of one gradient, and nothing is carried
that could be computed from the rest. Methods with memory move the weights first and look at the new ones
then, which saves an array; ``plain`` is the usual loop.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, PyTree

from nestax.parts.gains import first_belief, follow
from nestax.parts.remembering import LONGEST, RATE

#: λ of the robust loss λ log E exp(ℓ/λ).
SOFTNESS = 5.0
#: Of all methods that have a forgetting rate.
BETA = 0.1
KEEP = 1 - BETA
#: How many groups of a batch ``SelfTuning`` compares.
GROUPS = 16

#: exp(ℓ/λ) of every draw of a batch, at given weights.
Each = Callable[[PyTree, PyTree], Array]


class Loop(NamedTuple):
    """A method by hand: ``start(w, draws)`` and ``step(state, draws)``.

    A state is a dictionary with the weights "w", the optimiser's state "optimizer" and, in methods with
    memory, the tracked value "u".

    first: number of the first step's draws. ``plain`` needs none to start.
    """

    start: Callable[[PyTree, PyTree], dict[str, Any]]
    step: Callable[[dict[str, Any], PyTree], dict[str, Any]]
    first: int = 1


def objective(u: Array) -> Array:
    return SOFTNESS * jnp.log(u)


def slope(u: Array) -> Array:
    """The derivative of the objective."""
    return SOFTNESS / u


def in_range(u: Array) -> Array:
    """Losses are not negative, so exp(ℓ/λ) is at least 1; a tracked value need not be."""
    return jnp.maximum(u, 1.0)


def plain(each: Each, optimizer: optax.GradientTransformation) -> Loop:
    def start(w: PyTree, draws: PyTree) -> dict[str, Any]:
        del draws
        return {"w": w, "optimizer": optimizer.init(w)}

    def step(state: dict[str, Any], draws: PyTree) -> dict[str, Any]:
        grad = jax.grad(lambda w: objective(jnp.mean(each(w, draws))))(state["w"])
        return _moved(optimizer, state, grad)

    return Loop(start, step, first=0)


def scsc(each: Each, optimizer: optax.GradientTransformation) -> Loop:
    mean = lambda w, draws: jnp.mean(each(w, draws))

    def start(w: PyTree, draws: PyTree) -> dict[str, Any]:
        u, grad = jax.value_and_grad(mean)(w, draws)
        grad = optax.tree.scale(slope(u), grad)
        return {"w": w, "optimizer": optimizer.init(w), "u": u, "grad": grad}

    def step(state: dict[str, Any], draws: PyTree) -> dict[str, Any]:
        after = _moved(optimizer, state, state["grad"])
        u, pull = jax.vjp(lambda w: mean(w, draws), after["w"])
        u = in_range(u + KEEP * (state["u"] - mean(state["w"], draws)))
        return after | {"u": u, "grad": pull(slope(u))[0]}

    return Loop(start, step)


def smvr(each: Each, optimizer: optax.GradientTransformation) -> Loop:
    mean = jax.value_and_grad(lambda w, draws: jnp.mean(each(w, draws)))

    def start(w: PyTree, draws: PyTree) -> dict[str, Any]:
        u, jac = mean(w, draws)
        return {"w": w, "optimizer": optimizer.init(w), "u": u, "jac": jac}

    def step(state: dict[str, Any], draws: PyTree) -> dict[str, Any]:
        after = _moved(optimizer, state, optax.tree.scale(slope(state["u"]), state["jac"]))
        u_new, new = mean(after["w"], draws)
        u_old, old = mean(state["w"], draws)
        jac = jax.tree.map(lambda n, tracked, o: n + KEEP * (tracked - o), new, state["jac"], old)
        return after | {"u": in_range(u_new + KEEP * (state["u"] - u_old)), "jac": jac}

    return Loop(start, step)


def adjoint_smvr(each: Each, optimizer: optax.GradientTransformation) -> Loop:
    """As by default, "lagged": derivatives at the weights of the last step and of the one before it."""
    mean = lambda w, draws: jnp.mean(each(w, draws))

    def start(w: PyTree, draws: PyTree) -> dict[str, Any]:
        u, grad = jax.value_and_grad(mean)(w, draws)
        grad = optax.tree.scale(slope(u), grad)
        copy = jax.tree.map(jnp.copy, w)
        state = {"w": w, "optimizer": optimizer.init(w), "u": u}
        return state | {"before": copy, "slope": slope(u), "grad": grad}

    def step(state: dict[str, Any], draws: PyTree) -> dict[str, Any]:
        after = _moved(optimizer, state, state["grad"])
        u_old, pull = jax.vjp(lambda w: mean(w, draws), state["w"])
        here = slope(state["u"])
        new = pull(here)[0]
        _, pull = jax.vjp(lambda w: mean(w, draws), state["before"])
        old = pull(state["slope"])[0]
        grad = jax.tree.map(lambda n, tracked, o: n + KEEP * (tracked - o), new, state["grad"], old)
        u = in_range(mean(after["w"], draws) + KEEP * (state["u"] - u_old))
        return after | {"u": u, "before": state["w"], "slope": here, "grad": grad}

    return Loop(start, step)


def self_tuning(each: Each, optimizer: optax.GradientTransformation) -> Loop:
    """Gains and the bound on the gradient, a few operations on single numbers, are nestax's own."""

    def in_groups(w: PyTree, draws: PyTree) -> Array:
        return jnp.mean(each(w, draws).reshape(GROUPS, -1), 1)

    def at(w: PyTree, draws: PyTree) -> tuple[Array, PyTree]:
        """The mean of every group, and the gradient of the mean of all."""

        def mean(w: PyTree) -> tuple[Array, Array]:
            groups = in_groups(w, draws)
            return jnp.mean(groups), groups

        grad, groups = jax.grad(mean, has_aux=True)(w)
        return groups, grad

    def start(w: PyTree, draws: PyTree) -> dict[str, Any]:
        groups, jac = at(w, draws)
        u = jnp.mean(groups)
        grad = optax.tree.scale(slope(u), jac)
        state = {"w": w, "optimizer": optimizer.init(w), "u": u, "grad": grad}
        more = {"belief": first_belief([groups]), "usual": optax.tree.norm(grad)}
        return state | more | {"count": jnp.zeros((), jnp.int32)}

    def step(state: dict[str, Any], draws: PyTree) -> dict[str, Any]:
        after = _moved(optimizer, state, state["grad"])
        groups, jac = at(after["w"], draws)
        old = in_groups(state["w"], draws)
        length = optax.tree.norm(optax.tree.sub(after["w"], state["w"]))
        count = state["count"] + 1
        found, belief = follow([groups], [old], [state["u"]], state["belief"], count, length)
        u = in_range(found[0])
        size = optax.tree.norm(jac)
        plain = size * slope(in_range(jnp.mean(groups)))
        rate = jnp.maximum(1 / (count + 1), RATE)
        usual = jnp.sqrt((1 - rate) * state["usual"] ** 2 + rate * plain**2)
        cut = jnp.minimum(slope(u) * size, LONGEST * jnp.maximum(usual, plain))
        grad = optax.tree.scale(cut / size, jac)
        return after | {"u": u, "grad": grad, "belief": belief, "usual": usual, "count": count}

    return Loop(start, step)


def _moved(
    optimizer: optax.GradientTransformation, state: dict[str, Any], grad: PyTree
) -> dict[str, Any]:
    change, inner = optimizer.update(grad, state["optimizer"], state["w"])
    return {"w": optax.apply_updates(state["w"], change), "optimizer": inner}


#: By the names of nestax's methods.
LOOPS: dict[str, Callable[[Each, optax.GradientTransformation], Loop]] = {
    "Plain": plain,
    "SCSC": scsc,
    "AdjointSMVR": adjoint_smvr,
    "SelfTuning": self_tuning,
    "SMVR": smvr,
}
