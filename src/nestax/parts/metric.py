"""Steps that scale every entry of the weights by itself, and the norm in which they are projected.

With D the diagonal that a step divides by, √v + ε in Adam, the next weights are

    argmin over the feasible set of  lr·(⟨m, x⟩ + r(x)) + 1/2 Σ_i D_i (x_i − w_i)²

Its fixed points are those of the problem whatever D is. The Euclidean projection of w − lr·m/D has
others: on a simplex, where the gradients of all entries have one sign, every point may be one. AdaGrad
(Duchi, Hazan, Singer, JMLR 2011) and AMSGrad (Reddi, Kale, Kumar, ICLR 2018) are projected like this.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, PyTree

import nestax.trees as trees
from nestax.chain.problem import Problem
from nestax.errors import SettingError
from nestax.parts.entries import bends, by_entry
from nestax.programs import compute, trace
from nestax.projections import takes_metric

#: An optimiser is looked at after so many updates with one gradient and then so many with another, when
#: means of gradients are those of the second and means of squares are not.
UPDATES = 20, 1000
#: How far two factors of an optimiser may lie apart, as a share, and be one number.
EVEN = 0.03
#: An optimiser that takes back more than this share of a change of the weights keeps others instead.
PULL = 0.003


def scaled_step(problem: Problem, w: PyTree, direction: PyTree, stiff: PyTree, lr: Any) -> PyTree:
    """The step above, for m = ``direction`` and D = ``stiff``, trees like w.

    A projection that cannot be told D sees its largest entry in place of all, so that no entry moves
    further than it would, unless it treats every entry by itself.
    """

    def kind(x, like):
        return jnp.asarray(x, like.dtype)

    def move(x, m, d):
        return x + (-kind(lr, m) * m / d)

    def cast(new, old):
        return new.astype(old.dtype)

    onto = problem.feasible if problem.prox is None else problem.prox.fn
    if onto is None or (problem.prox is None and by_entry(onto, w)):
        return problem.project(jax.tree.map(cast, jax.tree.map(move, w, direction, stiff), w))
    if takes_metric(onto):
        ahead = jax.tree.map(cast, jax.tree.map(move, w, direction, stiff), w)
        return problem.proximal(ahead, kind(lr, jax.tree.leaves(stiff)[0]), metric=stiff)
    most = jnp.max(jnp.stack([jnp.max(d) for d in jax.tree.leaves(stiff)]))
    ahead = jax.tree.map(lambda x, m: cast(move(x, m, most), x), w, direction)
    return problem.proximal(ahead, (kind(lr, most) / most).astype(problem.dtype))


def landed(
    problem: Problem,
    w: PyTree,
    change: PyTree,
    change_of: Callable[..., PyTree],
    grad: PyTree,
    state: Any,
) -> PyTree:
    """Weights after an optimiser's change, projected in the norm that it divides by.

    Args:
        change_of: ``change_of(grad, state)``, the change that it would make from its new state.
        grad, state: the gradient that it was given, and its new state.
    """
    onto: Any = problem.feasible
    if not bends(change_of, grad, state) or by_entry(onto, w):
        return problem.project(optax.apply_updates(w, change))
    stiff = stiffness(change_of, grad, state)
    if takes_metric(onto):
        return problem.project(optax.apply_updates(w, change), metric=stiff)
    most = jnp.max(jnp.stack([jnp.max(d) for d in jax.tree.leaves(stiff)]))
    even = jax.tree.map(lambda u, d: (u * d / most).astype(u.dtype), change, stiff)
    return problem.project(optax.apply_updates(w, even))


def stiffness(change_of: Callable[..., PyTree], grad: PyTree, state: Any) -> PyTree:
    """What an optimiser divides every entry by, up to a common factor.

    A denominator such as √(b v + (1 − b) g²) + ε does not move with g to first order where g = 0: the
    slope of the change there is one over it. Entries that never had a gradient have no slope; they are
    as soft as the softest.
    """
    zero = jax.tree.map(jnp.zeros_like, grad)
    one = jax.tree.map(jnp.ones_like, grad)
    _, slope = jax.jvp(lambda g: change_of(g, state), (zero,), (one,))
    size = jax.tree.map(lambda x: jnp.where(jnp.isfinite(x), jnp.abs(x), 0), slope)
    most = jnp.max(jnp.stack([jnp.max(x) for x in jax.tree.leaves(size)]))
    softest = jnp.where(most > 0, most, 1)
    return jax.tree.map(lambda x: softest / jnp.where(x > 0, x, softest), size)


# Before a run: whether that norm can be read


class Behaviour(NamedTuple):
    """What an optimiser does to a gradient g, given often enough after another, at weights that stay.

    factors, scaled: how far the factors −change/g of all entries lie apart, as they are and multiplied
        by what it divides by; NaN where an entry goes the wrong way.
    pull: the share of a change of the weights that it takes back.
    """

    factors: Array
    scaled: Array
    pull: Array


def refuse_unreadable(
    problem: Problem, onto: Callable[..., PyTree], optimizer: Any, call: Callable[..., Any]
) -> None:
    """Refuses an optimiser that cannot end at the optimum of this feasible set.

    Args:
        onto: the projection.
        optimizer: of Optax.
        call: its update, with the sentences for what it lacks.
    """
    w = jax.tree.map(
        lambda s: jnp.full(s.shape, 0.5, trees.average_dtype(s.dtype)), problem.shape.structs()
    )
    state = jax.eval_shape(optimizer.init, w)

    def update(g: PyTree, state: PyTree, w: PyTree) -> tuple[PyTree, PyTree]:
        return call(g, state, w, grad=g, value=jnp.ones(()))

    def change(g: PyTree, state: PyTree) -> PyTree:
        return update(g, state, w)[0]

    # One factor for one array, and nothing remembered: a gradient step, whatever it is called.
    if jax.tree.leaves(state) or len(jax.tree.leaves(w)) > 1 or bends(change, w, state):
        _refuse_by_behaviour(problem, onto, optimizer.init, update, w, state)


def _refuse_by_behaviour(
    problem: Problem,
    onto: Callable[..., PyTree],
    init: Callable[[PyTree], PyTree],
    update: Callable[..., tuple[PyTree, PyTree]],
    w: PyTree,
    state: PyTree,
) -> None:
    """Refuses it by what it keeps in its state and by what it does to two gradients."""

    def is_matrix(x: Any) -> bool:
        return isinstance(x, optax.ScaleByLBFGSState)

    if any(map(is_matrix, jax.tree.leaves(state, is_leaf=is_matrix))):
        raise SettingError(
            "this optimiser scales the gradient by a matrix, and a projection that fits it is a problem "
            "of its own: use nx.steps.Descent(lr) or nx.steps.Adam(lr) on a feasible set."
        )
    entries = by_entry(onto, problem.shape.structs())
    bent = bends(lambda g, state: update(g, state, w)[0], w, state)
    keeps = _keeps_weights(init, w)
    if not (keeps or (bent and not entries) or (len(jax.tree.leaves(w)) > 1 and not entries)):
        return
    found = compute(_behaviour, trace(init, w, lift=True), trace(update, w, state, w, lift=True), w)
    factors, scaled, pull = map(float, found)
    if keeps and pull > PULL:
        raise SettingError(
            "this optimiser keeps weights of its own in its state, which no projection reaches, so that "
            "it leaves the feasible set again: use nx.steps.Adam(lr) or nx.steps.Descent(lr) there."
        )
    if not entries and bent and not scaled < EVEN:
        raise SettingError(
            "this optimiser changes the direction of the gradient entry by entry, by what cannot be "
            "read off, so that with a projection onto this set it would not end at the optimum: use "
            "nx.steps.Adam(lr), which is projected in its own norm, or nx.steps.Descent(lr)."
        )
    if not entries and not bent and not factors < EVEN:
        raise SettingError(
            "this optimiser scales every array of the weights by a factor of its own, and this feasible "
            "set couples them: use nx.steps.Adam(lr) or nx.steps.Descent(lr), or make w0 one array."
        )


def _keeps_weights(init: Callable[[PyTree], Any], w: PyTree) -> bool:
    """Whether anything in an optimiser's first state comes from the weights."""
    both = (jax.tree.leaves(init(x)) for x in (w, jax.tree.map(lambda x: x + 0.25, w)))
    one, other = ([trees.as_host(x)[0] for x in leaves] for leaves in both)
    return not all(map(np.array_equal, one, other))


def _behaviour(init: Any, update: Any, w: PyTree) -> Behaviour:
    rng = np.random.default_rng(0)

    def of(fn):
        return jax.tree.map(lambda x: jnp.asarray(fn(x.shape), x.dtype), w)

    def draw(shape):
        return 10 ** rng.uniform(-0.5, 1.5, shape) * rng.choice([-1.0, 1.0], shape)

    g = of(draw)
    first = of(draw)

    def many(number, gradient, state):
        return jax.lax.fori_loop(0, number, lambda _, state: update(gradient, state, w)[1], state)

    early = many(UPDATES[0], first, init(w))
    state = many(UPDATES[1], g, early)

    def change_of(g, state, w=w):
        return update(g, state, w)[0]

    change = change_of(g, state)
    rest = change_of(jax.tree.map(jnp.zeros_like, g), state)
    _, after = update(g, state, w)

    def flat(tree):
        return jnp.concatenate([x.ravel() for x in jax.tree.leaves(tree)])

    c = -flat(optax.tree.sub(change, rest)) / flat(g)
    d = flat(stiffness(change_of, g, after))

    def apart(x):
        return jnp.where(jnp.min(x) > 0, jnp.max(x) / jnp.min(x) - 1, jnp.nan)

    # A direction beside the gradient and beside its signs, which distances that are learnt may scale.
    known, _ = jnp.linalg.qr(jnp.stack([flat(first), jnp.sign(flat(first))], axis=1))
    aside = jnp.asarray(rng.normal(size=c.size), c.dtype)
    aside = aside - known @ (known.T @ aside)
    step = 1e-2 * aside / jnp.maximum(jnp.max(jnp.abs(aside)), 1e-3)
    shifts = iter(jnp.split(step, np.cumsum([x.size for x in jax.tree.leaves(w)])[:-1]))
    moved = jax.tree.map(lambda x: x + next(shifts).reshape(x.shape), w)
    taken = flat(optax.tree.sub(change_of(first, early, moved), change_of(first, early)))
    return Behaviour(apart(c), apart(c * d), -jnp.vdot(taken, step) / jnp.vdot(step, step))
