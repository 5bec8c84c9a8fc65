"""Figures of many panels."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from nestax.figures import COLOURS, DASHES

#: Smaller numbers are rounding error, and drawn as this.
FLOOR = 1e-16


def empty_panels(rows: int, columns: int, size: tuple[float, float], **shared: Any) -> tuple[Any, Any]:
    """Returns a figure with a grid of panels for curves over samples, and the panels."""
    try:
        from matplotlib.figure import Figure
        from matplotlib.ticker import EngFormatter
    except ImportError:
        raise ImportError("figures need matplotlib: pip install 'nestax[plot]'.") from None
    figure = Figure(figsize=size, layout="constrained")
    axes = figure.subplots(rows, columns, squeeze=False, **shared)
    for axis in axes.flat:
        axis.grid(alpha=0.25)
        axis.spines[["top", "right"]].set_visible(False)
        axis.xaxis.set_major_formatter(EngFormatter(sep=""))
    return figure, axes


Curves = dict[str, tuple[np.ndarray, np.ndarray]]


def draw_panels(panels: dict[tuple[int, str], Curves], ylabels: Sequence[str]) -> Any:
    """A panel per row and title with curves, label to (samples, seeds × records); one legend.

    Curves are means with a band of one deviation; runs that diverged are left out.
    """
    titles = list(dict.fromkeys(title for _, title in panels))
    size = (max(9, 3.6 * len(titles)), 3 * len(ylabels) + 0.8)
    figure, axes = empty_panels(len(ylabels), len(titles), size, sharex="col")
    for (row, title), curves in panels.items():
        axis = axes[row, titles.index(title)]
        for number, (label, (samples, lanes)) in enumerate(curves.items()):
            colour = COLOURS[number % len(COLOURS)]
            dash = DASHES[number % len(DASHES)]
            lanes = np.maximum(lanes[np.isfinite(lanes).all(axis=1)], FLOOR)
            if not len(lanes):
                continue
            mean = lanes.mean(axis=0)
            deviation = lanes.std(axis=0)
            axis.plot(samples, mean, color=colour, ls=dash, label=label)
            low = np.maximum(mean - deviation, lanes.min(axis=0))
            axis.fill_between(samples, low, mean + deviation, color=colour, alpha=0.15, lw=0)
        axis.set_yscale("log")
    for axis, title in zip(axes[0], titles, strict=True):
        axis.set_title(title)
    for axis in axes[-1]:
        axis.set_xlabel("samples drawn, all levels")
    for axis, label in zip(axes[:, 0], ylabels, strict=True):
        axis.set_ylabel(label)
    handles, labels = axes[0, 0].get_legend_handles_labels()
    rows = math.ceil(len(labels) / (6 if len(titles) > 2 else 3))
    columns = math.ceil(len(labels) / rows)
    figure.legend(handles, labels, loc="outside lower center", ncols=columns, frameon=False)
    return figure
