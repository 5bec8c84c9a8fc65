"""Step rules that scale every entry of the weights by itself, in the form that nestax runs them."""

import abc
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Int, PyTree

import nestax.trees as trees
from nestax.chain.problem import Problem
from nestax.errors import POSITIVE, choose
from nestax.parts.metric import scaled_step
from nestax.parts.settings import Setting, at, setting
from nestax.parts.step_rule import AbstractStep

ONE_OF = {"check": lambda name, value: choose(name, value, ("own", "plain"))}


class Scaled(NamedTuple):
    """A step before it is taken: its direction m, what it divides by, D, and the moments after it."""

    direction: PyTree
    stiff: PyTree
    moments: PyTree


class ScalingState(eqx.Module):
    """Steps taken, and what the rule remembers of the gradients."""

    count: Int[Array, ""]
    moments: PyTree


class AbstractScaling(AbstractStep):
    """w_{t+1} = argmin of η(⟨m, x⟩ + r(x)) + 1/2 Σ_i D_i (x_i − w_i)² over the feasible set.

    Without set and term that is w − η m/D. A subclass tells m and D. Half precision is seen as single,
    in which moments move.

    Args:
        squares: "own" takes D from the squares of the gradient. "plain" takes it from those of gradients
            as plain batches would have them, where the estimator has these at hand, as
            ``nx.SelfTuning`` does: memory makes gradients smaller, and steps that divide by their size
            longer; so they are no longer than without memory at the same rate.
    """

    lr: Setting = setting(POSITIVE)
    squares: str = eqx.field(default="own", static=True, kw_only=True, metadata=ONE_OF)

    @property
    def asks_plain(self) -> bool:
        return self.squares == "plain"

    @abc.abstractmethod
    def first(self, zeros: PyTree) -> PyTree:
        """The moments at the start, from zeros like the gradient."""

    @abc.abstractmethod
    def scaled(self, grad: PyTree, plain: PyTree, moments: PyTree, count: Array) -> Scaled:
        """The next step.

        ``plain`` is the gradient whose squares count: that of plain batches where the estimator has it,
        else the gradient itself.
        """

    def ready(self, horizon: Array | int, dtype: Any) -> Any:
        """With numbers in single precision at least: in less 0.999 may be 1."""
        return super().ready(horizon, trees.average_dtype(dtype))

    def init(self, w: PyTree) -> ScalingState:
        zeros = jax.tree.map(jnp.zeros_like, trees.as_average(w))
        return ScalingState(jnp.zeros((), jnp.int32), self.first(zeros))

    def update(self, problem: Problem, w: PyTree, grad: PyTree, aux: dict[str, Any], state: Any):
        grad = trees.as_average(grad)
        plain = trees.as_average(aux["plain"]) if "plain" in aux else grad
        step = self.scaled(grad, plain, state.moments, state.count)
        w = scaled_step(problem, w, step.direction, step.stiff, at(self.lr, state.count))
        return w, ScalingState(state.count + 1, step.moments)


def toward(mean: PyTree, share: Any, new: PyTree) -> PyTree:
    """(1 − share)·mean + share·new."""
    return jax.tree.map(lambda old, x: old + like(share, old) * (x - old), mean, new)


def squared(grad: PyTree) -> PyTree:
    return jax.tree.map(lambda g: g * g, grad)


def like(number: Any, leaf: Array) -> Array:
    """In the dtype of the weights, whatever the dtype of the setting."""
    return jnp.asarray(number, leaf.dtype)
