"""A tracker as a module of Flax NNX: ``nx.track`` with its memory in a Variable."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, PyTree

from nestax.parts.track import check_forgetting, track, track_init, untracked

try:
    from flax import nnx
except ImportError:
    raise ImportError("nestax.nnx needs Flax: pip install 'nestax[flax]'.") from None


class Memory(nnx.Variable):
    """What a ``Tracked`` remembers, a ``nx.TrackState``: a type of its own, for filters of NNX."""


class Tracked(nnx.Module):
    """``nx.track`` with its state inside: called with g, it returns the tracked value of it.

    In ``eval`` mode, and in a ``nnx.view`` with deterministic=True, nothing is remembered, and g (with
    gain="auto" the mean of its draws) is returned as it is.

    Args:
        n: how many rows a table has, one per example or class; None means one memory, no table.
        shape, dtype: of one tracked value; JAX's default floating-point dtype if not given.
        beta, gain, lagged, log, project: as for ``nx.track``.
    """

    def __init__(
        self,
        n: int | None = None,
        shape: tuple[int, ...] = (),
        *,
        beta: float | None = None,
        gain: str | None = None,
        lagged: bool = False,
        log: bool = False,
        project: Callable[[Array], Array] | None = None,
        dtype: Any = None,
    ):
        check_forgetting(beta, gain)
        self.beta = beta
        self.gain = gain
        self.lagged = lagged
        self.log = log
        self.project = project
        self.deterministic = False  # what ``eval`` sets
        example = jax.ShapeDtypeStruct(shape, jnp.result_type(float) if dtype is None else dtype)
        self.memory = Memory(track_init(example, n, gain))

    def set_view(self, deterministic: bool | None = None) -> None:
        """What ``nnx.view`` calls.

        Args:
            deterministic: if True, nothing is remembered.
        """
        if deterministic is not None:
            self.deterministic = deterministic

    def __call__(self, g: Array, index: Any = None, previous: PyTree = None) -> Array:
        """g, with the tracked value; ``index`` and ``previous`` as for ``nx.track``."""
        if self.deterministic:
            return untracked(g, index, self.gain)
        u, state = track(
            g,
            self.memory.get_value(),
            index,
            beta=self.beta,
            gain=self.gain,
            previous=previous,
            lagged=self.lagged,
            log=self.log,
            project=self.project,
        )
        self.memory.set_value(state)
        return u
