"""A tracker as a layer of Equinox: ``nx.track`` with its memory in ``eqx.nn.State``."""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, PyTree

from nestax.errors import SettingError
from nestax.parts.track import TrackState, check_forgetting, track, track_init, untracked


class Tracked(eqx.nn.StatefulLayer):
    """``nx.track`` as a stateful layer: ``u, state = tracked(g, state)``.

    Made by itself, or as part of a model, with ``eqx.nn.make_with_state(Tracked)(...)``. Under
    ``eqx.nn.inference_mode`` nothing is remembered, and g (with gain="auto" the mean of its draws) is
    returned as it is.

    Args:
        n: how many rows a table has, one per example or class; None means one memory, no table.
        shape, dtype: of one tracked value; JAX's default floating-point dtype if not given.
        beta, gain, lagged, log, project: as for ``nx.track``.
    """

    memory: eqx.nn.StateIndex[TrackState]
    beta: float | None
    gain: str | None = eqx.field(static=True)
    lagged: bool = eqx.field(static=True)
    log: bool = eqx.field(static=True)
    project: Callable[[Array], Array] | None
    inference: bool

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
        example = jax.ShapeDtypeStruct(shape, jnp.result_type(float) if dtype is None else dtype)
        self.memory = eqx.nn.StateIndex(track_init(example, n, gain))
        self.beta = beta
        self.gain = gain
        self.lagged = lagged
        self.log = log
        self.project = project
        self.inference = False

    def __call__(
        self, g: Array, state: eqx.nn.State, index: Any = None, previous: PyTree = None
    ) -> tuple[Array, eqx.nn.State]:
        """g with the tracked value, and the state; ``index`` and ``previous`` as for ``nx.track``."""
        if self.inference:
            return untracked(g, index, self.gain), state
        if not isinstance(state, eqx.nn.State):
            raise SettingError(
                "Tracked is called as tracked(g, state) with the eqx.nn.State that "
                f"eqx.nn.make_with_state made beside the model; got {type(state).__name__}."
            )
        u, memory = track(
            g,
            state.get(self.memory),
            index,
            beta=self.beta,
            gain=self.gain,
            previous=previous,
            lagged=self.lagged,
            log=self.log,
            project=self.project,
        )
        return u, state.set(self.memory, memory)
