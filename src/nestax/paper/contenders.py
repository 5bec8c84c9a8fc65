"""Methods that contend with each other in an experiment, and figures of many panels.

Every contender has a learning rate and one knob of its own. A learning rate is the length of a step
here: what a step rule multiplies it by is divided out first.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np

from nestax.estimators import ATSCGD, NLASG, SCSC, SMVR, NestedSPIDER
from nestax.estimators.tscgd import published_beta
from nestax.figures import COLOURS, DASHES
from nestax.steps import Descent

#: Smaller numbers are rounding error, and drawn as this.
FLOOR = 1e-16


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


Curves = dict[str, tuple[np.ndarray, np.ndarray]]


def draw_panels(panels: dict[tuple[int, str], Curves], ylabels: Sequence[str]) -> Any:
    """A panel per row and title with curves, label to (samples, seeds × records); one legend.

    Curves are means with a band of one deviation; runs that diverged are left out.
    """
    try:
        from matplotlib.figure import Figure
        from matplotlib.ticker import EngFormatter
    except ImportError:
        raise ImportError("figures need matplotlib: pip install 'nestax[plot]'.") from None
    titles = list(dict.fromkeys(title for _, title in panels))
    size = (max(9, 3.6 * len(titles)), 3 * len(ylabels) + 0.8)
    figure = Figure(figsize=size, layout="constrained")
    axes = figure.subplots(len(ylabels), len(titles), squeeze=False, sharex="col")
    for (row, title), curves in panels.items():
        axis = axes[row, titles.index(title)]
        for number, (label, (samples, lanes)) in enumerate(curves.items()):
            colour = COLOURS[number % len(COLOURS)]
            dash = DASHES[number % len(DASHES)]
            lanes = np.maximum(lanes[np.isfinite(lanes).all(axis=1)], FLOOR)
            if not len(lanes):
                continue
            mean = lanes.mean(axis=0)
            spread = lanes.std(axis=0)
            axis.plot(samples, mean, color=colour, ls=dash, label=label)
            low = np.maximum(mean - spread, lanes.min(axis=0))
            axis.fill_between(samples, low, mean + spread, color=colour, alpha=0.15, lw=0)
        axis.set_yscale("log")
        axis.grid(alpha=0.25)
        axis.spines[["top", "right"]].set_visible(False)
    for axis, title in zip(axes[0], titles, strict=True):
        axis.set_title(title)
    for axis in axes[-1]:
        axis.set_xlabel("samples drawn, all levels")
        axis.xaxis.set_major_formatter(EngFormatter(sep=""))
    for axis, label in zip(axes[:, 0], ylabels, strict=True):
        axis.set_ylabel(label)
    handles, labels = axes[0, 0].get_legend_handles_labels()
    rows = math.ceil(len(labels) / (6 if len(titles) > 2 else 3))
    columns = math.ceil(len(labels) / rows)
    figure.legend(handles, labels, loc="outside lower center", ncols=columns, frameon=False)
    return figure
