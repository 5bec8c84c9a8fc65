"""One run of ``nx.track`` per kind of memory, for the layers of every framework to be compared with."""

from typing import Any, NamedTuple

import jax
import numpy as np
from tests.support.compiled import quick_jit

import nestax as nx

STEPS = 50
BETA = 0.2
ROWS = 7
VISIT = 3
DRAWS = 4
TOLERANCE = {"float32": 1e-6, "float64": 1e-12}


class Kind(NamedTuple):
    """A kind of memory: a table or not, the shape of a value, whether g is given at two points."""

    settings: dict[str, Any]
    table: bool = False
    shape: tuple[int, ...] = ()
    two_points: bool = False

    @property
    def made_with(self) -> dict[str, Any]:
        """What a layer is made with."""
        return {"n": ROWS if self.table else None, "shape": self.shape, **self.settings}


KINDS = {
    "average": Kind({"beta": BETA}, shape=(3,)),
    "storm": Kind({"beta": BETA}, shape=(3,), two_points=True),
    "lagged": Kind({"beta": BETA, "lagged": True}),
    "in range": Kind({"beta": BETA, "project": lambda u: u.clip(-0.5, 0.5)}, two_points=True),
    "logarithm": Kind({"beta": BETA, "log": True}, shape=(3,)),
    "table of logarithms": Kind({"beta": BETA, "log": True, "lagged": True}, table=True),
    "table": Kind({"beta": BETA, "project": lambda u: u.clip(-0.5, 0.5)}, table=True),
    "table, lagged": Kind({"beta": BETA, "lagged": True}, table=True, shape=(2, 2)),
    "table, storm": Kind({"beta": BETA}, table=True, shape=(2,), two_points=True),
    "gains": Kind({"gain": "auto"}, shape=(3,), two_points=True),
    "gains, table": Kind({"gain": "auto"}, table=True, two_points=True),
    "gains, lagged": Kind({"gain": "auto", "lagged": True}, two_points=True),
}


class Step(NamedTuple):
    """What a tracker is called with; NumPy arrays, or None."""

    g: np.ndarray
    index: np.ndarray | None
    previous: np.ndarray | None


def steps_of(name: str, dtype: str) -> list[Step]:
    kind = KINDS[name]
    rng = np.random.default_rng(8)
    lead = (VISIT,) * kind.table + (DRAWS,) * ("gain" in kind.settings)
    steps = []
    for t in range(STEPS):
        g = 0.5 + np.sin(t / 10) / 2 + 0.5 * rng.normal(size=(*lead, *kind.shape))
        index = rng.choice(ROWS, VISIT, replace=False) if kind.table else None
        previous = (
            (g - 0.05 + 0.02 * rng.normal(size=g.shape)).astype(dtype) if kind.two_points else None
        )
        steps.append(Step(g.astype(dtype), index, previous))
    return steps


class Expected(NamedTuple):
    """One step of a tracker: what it returns, and its memory after it."""

    u: np.ndarray
    state: nx.TrackState


def expected_of(name: str, dtype: str) -> list[Expected]:
    """The same steps by ``nx.track``."""
    kind = KINDS[name]
    gain = kind.settings.get("gain")
    state = nx.track_init(jax.ShapeDtypeStruct(kind.shape, dtype), kind.made_with["n"], gain)
    step = quick_jit(lambda g, state, i, old: nx.track(g, state, i, previous=old, **kind.settings))
    out = []
    for g, index, previous in steps_of(name, dtype):
        u, state = step(g, state, index, previous)
        out.append(Expected(np.asarray(u), state))
    return out
