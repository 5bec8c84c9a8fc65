"""Methods that contend with each other in an experiment.

Every contender has a learning rate and one knob of its own. A learning rate is the length of a step
here: what a step rule multiplies it by is divided out first.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np

from nestax.estimators import ATSCGD, NLASG, SCSC, SMVR, NestedSPIDER
from nestax.estimators.tscgd import published_beta
from nestax.steps import Descent


class Contender(NamedTuple):
    """A method and its knob.

    build: from a setting to what ``nx.sweep`` takes.
    knob, values: what is tuned besides ``lr``.
    length: how much longer than the budget it is followed and tuned; it is compared at the budget.
    parts: its batches are this many times smaller; it takes as many more steps.
    """

    build: Callable[[Any], Any]
    knob: str
    values: Sequence[float]
    length: int = 1
    parts: int = 1


def atscgd(levels: int) -> Callable[[Any], Any]:
    """Its learning rate falls to a fiftieth or less: ten times as much to begin with."""

    def build(s: Any) -> Any:
        beta = lambda count: jnp.minimum(1, s.scale * published_beta(count, levels))
        return ATSCGD(beta, lr=10 * s.lr)

    return build


def nlasg(s: Any) -> Any:
    return NLASG(s.tau, lr=s.lr / s.tau)


def nested_spider(**facts: Any) -> Callable[[Any], Any]:
    """It goes at most half of the way that its learning rate asks for."""
    return lambda s: NestedSPIDER(eps=s.eps, lr=2 * s.lr, **facts)


def scsc(s: Any) -> Any:
    return SCSC(s.beta), Descent(s.lr)


def smvr(s: Any) -> Any:
    return SMVR(s.beta, lr=s.lr)


def last_within(drawn: np.ndarray, samples: float) -> int:
    """The last record that draws no more than this."""
    return int(np.flatnonzero(drawn <= samples)[-1])
