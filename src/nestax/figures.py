"""Figures of runs and sweeps: value and gradient norm against samples."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

#: Okabe and Ito's colours, told apart with any kind of colour vision.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
DASHES = ("-", "--", ":", "-.")
#: Columns on a logarithmic axis, and the rounding error of a gap in float64.
LOGARITHMIC = ("gap", "grad_norm")
ROUNDING = 1e-16
#: Smaller weights, in percent, get no bar of their own.
LEAST_PERCENT = 0.05
MOST_BARS = 25
#: In inches: at the width of a phone a figure of this width still has letters that can be read.
WIDTH = 5.4
LONGEST_NAME = 24
NAMES = {
    "value": "tracked value of F(w)",
    "exact_value": "F(w)",
    "held_out": "F(w) held out",
    "gap": "F(w) − F*",
    "grad_norm": "gradient norm, or gradient mapping",
}


def _pyplot() -> Any:
    try:
        import matplotlib.pyplot as plt
    except ImportError:
        raise ImportError("figures need matplotlib: pip install 'nestax[plot]'.") from None
    return plt


def plot_run(records: dict[str, np.ndarray], path: str | Path | None) -> Any:
    """Top: values, or the gap where the optimum is known. Below: the gradient norm."""
    values = [name for name in ("exact_value", "held_out", "value") if name in records]
    left = ["gap"] if "gap" in records else values
    panels = [left] + ([["grad_norm"]] if "grad_norm" in records else [])
    plt = _pyplot()
    figure, axes = _stacked(plt, len(panels))
    for axis, names in zip(axes, panels, strict=True):
        for name, colour in zip(names, COLOURS, strict=False):
            noise = name == "value" and len(names) > 1
            if noise:  # it lies behind what it is of, pale, and is cut where it goes further
                axis.set_ylim(axis.get_ylim())
            style = {"alpha": 0.5, "zorder": 1.5} if noise else {}
            axis.plot(records["samples"], records[name], color=colour, label=NAMES[name], **style)
        _finish(axis, names, [records[name] for name in names])
    handles, labels = axes[0].get_legend_handles_labels()
    if len(labels) > 1:
        figure.legend(handles, labels, frameon=False, loc="outside upper center", ncols=len(labels))
    return _saved(figure, path)


def plot_sweep(sweep: Any, column: str, path: str | Path | None) -> Any:
    """Draws mean and band (one standard deviation over seeds) for the best settings."""
    curves = sweep.records[column]
    order = np.argsort(np.where(sweep.finite, curves[:, :, -1], np.inf).mean(axis=1))[: len(COLOURS)]
    labels = [
        ", ".join(f"{name} {values[index]:g}" for name, values in sweep.settings.items())
        for index in order
    ]
    lanes = [curves[index] for index in order]
    return plot_curves(sweep.records["samples"], dict(zip(labels, lanes, strict=True)), column, path)


def plot_curves(
    samples: Any,
    curves: dict[str, np.ndarray],
    column: str,
    path: str | Path | None = None,
    *,
    unit: str = "",
) -> Any:
    """Draws one curve per label: mean over seeds (the first axis) with a band of one deviation.

    ``samples`` is one axis for all curves, or a dictionary with one each; ``unit`` that of the column.
    """
    return plot_panels(samples, {column: curves}, path, unit=unit)


def plot_panels(
    samples: Any,
    panels: dict[str, dict[str, np.ndarray]],
    path: str | Path | None = None,
    *,
    unit: str = "",
) -> Any:
    """Draws the curves of several columns one below the other, with one legend on top."""
    plt = _pyplot()
    figure, axes = _stacked(plt, len(panels))
    for axis, (column, curves) in zip(axes, panels.items(), strict=True):
        curves = _drawable(column, curves)
        for number, (label, lanes) in enumerate(curves.items()):
            _band(axis, samples[label] if isinstance(samples, dict) else samples, label, lanes, number)
        _finish(axis, [column], list(curves.values()))
        if unit:
            axis.set_ylabel(f"{axis.get_ylabel()}, {unit}")
        if len(curves) == 1:
            axis.set_title(next(iter(curves)), fontsize="medium")
    if len(next(iter(panels.values()))) > 1:
        handles, labels = axes[0].get_legend_handles_labels()
        wide = 1 if max(map(len, labels)) > LONGEST_NAME else 3
        figure.legend(handles, labels, frameon=False, loc="outside upper center", ncols=wide)
    return _saved(figure, path)


def _stacked(plt: Any, panels: int) -> tuple[Any, Any]:
    """Returns a figure with so many panels one below the other."""
    figure, axes = plt.subplots(
        panels, 1, figsize=(WIDTH, 0.5 + 3.1 * panels), layout="constrained", squeeze=False
    )
    return figure, axes[:, 0]


def plot_weights(names: Sequence[str], weights: np.ndarray, path: str | Path | None = None) -> Any:
    """Portfolio weights in percent as bars, the largest on top, small ones together at the bottom."""
    plt = _pyplot()
    bars = _bars(names, 100 * np.asarray(weights, float))
    figure, axis = plt.subplots(figsize=(WIDTH, 1 + 0.28 * len(bars)), layout="constrained")
    lengths = [length for _, length in bars]
    drawn = axis.barh(range(len(bars)), lengths, color=COLOURS[0], height=0.7)
    axis.bar_label(drawn, [f"{length:.1f}" for length in lengths], padding=3)
    # A dollar sign in a name is a dollar sign, not mathematics.
    axis.set_yticks(range(len(bars)), [name for name, _ in bars], parse_math=False)
    axis.invert_yaxis()
    axis.margins(x=0.1)
    axis.set_xlabel("weight, percent")
    axis.tick_params(axis="y", length=0)
    axis.spines[["top", "right"]].set_visible(False)
    axis.grid(axis="x", alpha=0.25)
    axis.set_axisbelow(True)
    return _saved(figure, path)


def plot_bars(
    names: Sequence[str],
    columns: Mapping[str, Sequence[float]],
    label: str,
    path: str | Path | None = None,
) -> Any:
    """Draws one group of bars a name, with one bar a column of numbers; the first name on top."""
    plt = _pyplot()
    names = [_short(name) for name in names[:MOST_BARS]]
    height = 0.8 / len(columns)
    size = (WIDTH, 1.4 + 0.24 * len(columns) * len(names))
    figure, axis = plt.subplots(figsize=size, layout="constrained")
    for number, (column, lengths) in enumerate(columns.items()):
        places = np.arange(len(names)) + number * height
        shown = list(lengths)[: len(names)]
        drawn = axis.barh(places, shown, height=0.9 * height, color=COLOURS[number], label=column)
        axis.bar_label(drawn, [f"{length:.1f}" for length in shown], padding=3, fontsize=8)
    middle = np.arange(len(names)) + (len(columns) - 1) * height / 2
    axis.set_yticks(middle, names, parse_math=False)
    axis.invert_yaxis()
    axis.margins(x=0.1)
    axis.set_xlabel(label)
    axis.tick_params(axis="y", length=0)
    axis.spines[["top", "right"]].set_visible(False)
    axis.grid(axis="x", alpha=0.25)
    axis.set_axisbelow(True)
    figure.legend(frameon=False, loc="outside upper center", ncols=len(columns))
    return _saved(figure, path)


def _bars(names: Sequence[str], percent: np.ndarray) -> list[tuple[str, float]]:
    """Name and length of every bar: those of some size, at most so many, and one for all others."""
    order = np.argsort(-np.abs(percent), kind="stable")
    own = [int(k) for k in order if abs(percent[k]) >= LEAST_PERCENT]
    own = own[: MOST_BARS - 1] if len(own) > MOST_BARS else own
    bars = sorted(((_short(names[k]), float(percent[k])) for k in own), key=lambda bar: -bar[1])
    if others := len(percent) - len(own):
        # Rounding errors have no side of the axis.
        rest = float(np.round(percent.sum() - percent[own].sum(), 9)) + 0.0
        bars.append((f"{others} other{'s' if others > 1 else ''}", rest))
    return bars


def _short(name: str) -> str:
    return name if len(name) <= LONGEST_NAME else name[: LONGEST_NAME - 1] + "…"


def _drawable(column: str, curves: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Curves for a logarithmic axis: what is zero or less by rounding error becomes the least above."""
    positive = [lanes[lanes > 0] for lanes in curves.values()]
    if column not in LOGARITHMIC or not positive or not all(part.size for part in positive):
        return curves
    least = max(ROUNDING, min(float(part.min()) for part in positive))
    return {label: np.maximum(lanes, least) for label, lanes in curves.items()}


def _band(axis: Any, x: np.ndarray, label: str, lanes: np.ndarray, number: int) -> None:
    colour = COLOURS[number % len(COLOURS)]
    dash = DASHES[number % len(DASHES)]
    mean = lanes.mean(axis=0)
    spread = lanes.std(axis=0)
    axis.plot(x, mean, color=colour, ls=dash, label=label, marker="o" if len(x) == 1 else "")
    low = np.maximum(mean - spread, lanes.min(axis=0))
    axis.fill_between(x, low, mean + spread, color=colour, alpha=0.15, lw=0)


def _finish(axis: Any, names: list[str], data: list[np.ndarray]) -> None:
    axis.set_xlabel("samples drawn, all levels")
    axis.set_ylabel(NAMES.get(names[0], names[0]) if len(names) == 1 else "value")
    # A gap at the rounding error of F* may be negative; it is then not drawn.
    if names[0] in LOGARITHMIC and all(np.any(d > 0) for d in data):
        axis.set_yscale("log", nonpositive="mask")
    axis.xaxis.set_major_formatter(lambda x, _: _thousands(x))
    axis.spines[["top", "right"]].set_visible(False)
    axis.grid(alpha=0.25)


def _thousands(x: float) -> str:
    for size, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(x) >= size:
            return f"{x / size:g}{letter}"
    return f"{x:g}"


def _saved(figure: Any, path: str | Path | None) -> Any:
    if path is not None:
        figure.savefig(path, dpi=150)
    import matplotlib
    import matplotlib.pyplot as plt

    if "inline" in matplotlib.get_backend():  # a notebook draws what is open, and what a cell returns
        plt.close(figure)
    return figure
