"""Mean squared Bellman residual of a value function, K = 2; K = 1 with two independent next states.

    F(w) = E_s ( E_{r,s'|s} [ r + γ v(w; s') ] − v(w; s) )²

level 1   f_1^s(w; r, s') = r + γ v(w; s') − v(w; s)        residual
level 2   f_2^s(u) = share_s·u²                             square, deterministic

with two next states, drawn independently of each other,

level 1   f_1(w; s, r, s', r̃, s̃') = (r + γ v(w; s') − v(w; s))·(r̃ + γ v(w; s̃') − v(w; s))   product

The square of a residual with one next state has the variance of r + γv(s') on top, which a value
function that is fitted to it makes small in the wrong way. Two independent next states take that bias
away, where a simulator can be asked twice from the same state; a memory of every state does, where
states come back.

Baird: Residual algorithms, ICML 1995. As a composition: Wang, Liu, Fang, JMLR 2017.
"""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, PyTree

import nestax.trees as trees
from nestax.chain.level import Level
from nestax.chain.problem import Problem
from nestax.draws.conditional import Conditional
from nestax.draws.source import Sampler
from nestax.errors import ProblemError, SettingError, check_setting
from nestax.problems.coupled.pairs import VISIT, default_visit
from nestax.problems.losses import linear, read_numbers, refusing, start_of
from nestax.problems.nested.ratios import dtype_of

Simulator = Callable[[PyTree, Array], tuple[Array, PyTree]]


class Residual(eqx.Module):
    """Level 1; a draw is a state, and a reward with the next state."""

    value: Callable[[PyTree, PyTree], Array]

    def __call__(self, w: PyTree, draw: Any, discount: Array) -> Array:
        (state, *_), (reward, after) = draw
        later, now = (jnp.reshape(self.value(w, s), ()) for s in (after, state))
        return jnp.reshape(reward, ()) + discount * later - now


class Product(eqx.Module):
    """The one level with two next states: ``draw`` is a state and two rewards with next states."""

    residual: Residual

    def __call__(self, w: PyTree, draw: Any, discount: Array) -> Array:
        state, first, second = draw
        return self.residual(w, ((state,), first), discount) * self.residual(
            w, ((state,), second), discount
        )


class AskedTwice(eqx.Module):
    """A state, and two independent answers of the simulator."""

    states: Callable[[Array], PyTree]
    simulate: Simulator

    def __call__(self, key: Array) -> tuple[PyTree, Any, Any]:
        state_key, first, second = jax.random.split(key, 3)
        state = self.states(state_key)
        return state, self.simulate(state, first), self.simulate(state, second)


class OneOf(eqx.Module):
    """One of some rows, all equally likely."""

    rows: Array

    def __call__(self, key: Array) -> Array:
        return self.rows[jax.random.randint(key, (), 0, len(self.rows))]


class AskedFrom(eqx.Module):
    """The simulator beside a state with its share, or beside a state alone."""

    simulate: Simulator

    def __call__(self, given: Any, key: Array) -> Any:
        return self.simulate(given[0], key)


class WithShare(eqx.Module):
    """States that never come back, all of one share."""

    states: Callable[[Array], PyTree]
    one: Array

    def __call__(self, key: Array) -> tuple[PyTree, Array]:
        return self.states(key), self.one


def bellman(
    *,
    discount: float,
    transitions: tuple[Any, Any, Any] | None = None,
    states: Any = None,
    simulate: Simulator | None = None,
    two: bool = False,
    model: Callable[[PyTree, PyTree], Any] | None = None,
    w0: PyTree = None,
    visit: int | None = None,
    **problem: Any,
) -> Problem:
    """Fits a value function to what a policy earns, from transitions or from a simulator.

    Args:
        discount: γ, in [0, 1).
        transitions: (s, r, s'): arrays with one row a transition, as read from a file. States that
            occur several times are one block, with all that came after them, and count as often as they
            occur.
        states: in place of transitions: rows, all equally likely; or an ``nx.Sampler``, whose states
            never come back.
        simulate: ``fn(s, key)``, a reward and the next state of the policy that is evaluated.
        two: whether the simulator is asked for two independent next states of every state. The problem
            then has one level and no blocks, its gradient no bias, and any method for one level applies.
        model: ``model(w, s)``, the value of a state; by default linear, w·s, s being features.
        w0: its starting weights; zeros for a linear one.
        visit: how many states a step visits, with ``batch_size`` next states for each; all, but at most
            16, by default.
        problem: further arguments of ``nx.Problem``.
    """
    check_setting("discount", discount, "in [0, 1)", lambda x: (x >= 0) & (x < 1))
    if (transitions is None) == (states is None) or (states is None) != (simulate is None):
        raise SettingError("give either transitions=(s, r, s'), or states= with simulate=fn(s, key).")
    if two and transitions is not None:
        raise SettingError(
            "two independent next states need a simulator: transitions that were seen once cannot be "
            "asked again. Leave two out; states that occur several times make blocks."
        )
    if model is not None and w0 is None:
        raise SettingError("a model of your own needs its starting weights: give w0.")
    if transitions is not None:
        outer, inner, ranges, example = _from_file(transitions)
    else:
        outer, inner, ranges, example = _from_simulator(states, simulate)
    if model is None:
        if jnp.ndim(example[0]) != 1:
            raise ProblemError(
                "a linear value function takes states that are vectors of features; got states of shape "
                f"{jnp.shape(example[0])}: give model= and w0=."
            )
        model = linear
        w0 = jnp.zeros(jnp.shape(example[0])) if w0 is None else w0
    start = start_of(w0)
    dtype = dtype_of(start)
    residual = Residual(model)
    gamma = jnp.asarray(discount, dtype)
    _refuse_unlike(residual, start, trees.cast(example, dtype), gamma)
    if two:
        draw = outer.fn if isinstance(outer, Sampler) else OneOf(outer)
        source = Sampler(AskedTwice(draw, inner))
        return Problem([Level(Product(residual), source, args=(gamma,), name="product")], w0, **problem)
    share = jnp.ones((), dtype)
    if isinstance(outer, Sampler):
        outer = Sampler(WithShare(outer.fn, share))
        visit = VISIT if visit is None else visit
    elif transitions is None:
        outer = (outer, jnp.ones(len(outer), dtype))
        visit = default_visit(visit, len(outer[1]))
    else:
        visit = default_visit(visit, len(outer[1]))
    inner = AskedFrom(inner) if transitions is None else inner
    blocks = Conditional(outer, inner, visit=visit, ranges=ranges)
    return Problem(
        [
            Level(residual, blocks, args=(gamma,), name="residual"),
            Level(lambda u, s: s[1] * u**2, Conditional(outer, visit=visit), name="square"),
        ],
        w0,
        **problem,
    )


def _from_simulator(states: Any, simulate: Any) -> tuple[Any, Any, Any, Any]:
    """States, the simulator, and an example of a state, a reward and a next state."""
    if not callable(simulate):
        raise ProblemError(f"simulate must be a function of (s, key); got {type(simulate).__name__}.")
    key = jax.random.key(0)
    if not isinstance(states, Sampler):
        states = jnp.asarray(read_numbers(states, "states"))
        if len(states) == 0:
            raise ProblemError("states is empty: it needs at least one row.")
    state = states.fn(key) if isinstance(states, Sampler) else states[0]
    with refusing("simulate(s, key) must return (reward, next state)"):
        answer: Any = simulate(state, key)
        reward, after = answer
    return states, simulate, None, (state, reward, after)


def _from_file(transitions: Any) -> tuple[Any, Any, Any, Any]:
    """Transitions by state: the states with their shares, what came after them, and where that lies."""
    if not isinstance(transitions, tuple | list) or len(transitions) != 3:
        raise ProblemError("transitions must be three arrays, (s, r, s'), one row a transition.")
    names = ("s", "r", "s'")
    s, r, after = [
        read_numbers(x, f"{name} of transitions") for x, name in zip(transitions, names, strict=True)
    ]
    if not len(s) == len(r) == len(after) or s.shape != after.shape or r.ndim != 1 or len(r) == 0:
        raise ProblemError(
            "transitions must be (s, r, s') with one state, one reward and one next state a row; got "
            f"shapes {s.shape}, {r.shape} and {after.shape}."
        )
    states, which, count = np.unique(s, axis=0, return_inverse=True, return_counts=True)
    order = np.argsort(which.ravel(), kind="stable")
    # Blocks are averaged with equal weights, and states count as often as they occur.
    share = count * len(count) / len(s)
    outer = (states, share.astype(r.dtype if r.dtype.kind == "f" else float))
    first = np.cumsum(count) - count
    rows = (r[order].astype(float), after[order])
    return outer, rows, (first, count), (jnp.asarray(s[0]), jnp.asarray(r[0]), jnp.asarray(after[0]))


def _refuse_unlike(residual: Residual, w: PyTree, example: Any, discount: Array) -> None:
    state, reward, after = example
    if jnp.shape(state) != jnp.shape(after) or jnp.size(reward) != 1:
        raise ProblemError(
            f"a next state must look like a state, {jnp.shape(state)}, and a reward be one number; got "
            f"{jnp.shape(after)} and {jnp.shape(reward)}."
        )
    with refusing("model, states and w0 do not fit together"):
        value = residual(w, ((state,), (reward, after)), discount)
    if not bool(jnp.isfinite(value)):
        raise ProblemError(f"the Bellman residual of the first state is {value}: choose another w0.")
