"""The picture of docs/tilted.md: what each tilt does to the boundary between two classes.

Two hundred rows of a common class, twenty of a rare one, and six rows far away that belong to the common
class but are labelled as rare. Four classifiers differ in their tilts alone: every panel has the same
rows and the same penalty, and is fitted by the full gradient of its own objective.

Writes docs/images/tilts.png and prints the accuracies on new rows without wrong labels.
"""

import matplotlib.pyplot as plt
import numpy as np

import nestax as nx
from nestax.figures import COLOURS
from pages import page
from script import parser, size

STEPS = size(4_000, small=10)
PANELS = {
    (0.0, 0.0): "no tilt: the mean of all rows",
    (-2.0, 0.0): "inner tilt −2: wrong labels do not count",
    (0.0, 10.0): "outer tilt 10: the rare class counts",
    (-2.0, 10.0): "both",
}
WRONG = 6
COMMON = COLOURS[0]
RARE = COLOURS[1]


def rows(rng, common, rare, wrong=0):
    """Features, labels, and which labels are wrong."""
    X = np.vstack(
        [
            rng.normal([0.0, 0.0], [1.0, 1.0], (common, 2)),
            rng.normal([2.2, 1.2], [0.6, 0.6], (rare, 2)),
            rng.normal([-2.6, -2.2], [0.45, 0.45], (wrong, 2)),
        ]
    )
    label = np.repeat([0, 1, 1], [common, rare, wrong])
    return X, label, np.repeat([False, False, True], [common, rare, wrong])


if __name__ == "__main__":
    parser(__doc__).parse_args()
    rng = np.random.default_rng(0)
    X, y, wrong = rows(rng, 200, 20, WRONG)
    new, truth, _ = rows(rng, 20_000, 20_000)
    figure, axes = plt.subplots(2, 2, figsize=(8.4, 7.2), sharex=True, sharey=True, layout="constrained")
    grid = np.meshgrid(np.linspace(-4.2, 4.4, 300), np.linspace(-4.0, 3.6, 300))
    for axis, ((inner, outer), title) in zip(axes.flat, PANELS.items(), strict=True):
        model = nx.sklearn.TiltedClassifier(
            inner_tilt=inner,
            outer_tilt=outer,
            balanced=False,
            l2=0.01,
            method="exact",
            max_iter=STEPS,
            random_state=0,
        ).fit(X, y)
        right = model.predict(new) == truth
        found = [right[truth == k].mean() for k in (0, 1)]
        print(f"{inner:4} {outer:4}  common {found[0]:.1%}, rare {found[1]:.1%}")
        scores = model.decision_function(np.column_stack([g.ravel() for g in grid])).reshape(
            grid[0].shape
        )
        axis.contourf(*grid, scores > 0, levels=[-0.5, 0.5, 1.5], colors=[COMMON, RARE], alpha=0.10)
        axis.contour(*grid, scores, levels=[0], colors="black", linewidths=1.8)
        for which, colour, mark, name in (
            (y == 0, COMMON, "o", "common class"),
            ((y == 1) & ~wrong, RARE, "s", "rare class"),
            (wrong, RARE, "X", "common, but labelled as rare"),
        ):
            axis.scatter(
                *X[which].T,
                s=34 if mark == "X" else 18,
                c=colour,
                marker=mark,
                label=name,
                edgecolors="white",
                linewidths=0.5,
            )
        axis.set_title(title, fontsize=11)
        axis.text(
            0.98,
            0.03,
            f"found of new rows: common {found[0]:.0%}, rare {found[1]:.0%}",
            transform=axis.transAxes,
            ha="right",
            fontsize=9,
            bbox={"facecolor": "white", "edgecolor": "none", "alpha": 0.85, "pad": 2},
        )
        axis.set(xlim=(-4.2, 4.4), ylim=(-4.0, 3.6), xticks=[], yticks=[])
    handles, names = axes[0, 0].get_legend_handles_labels()
    line = plt.Line2D([], [], color="black", lw=1.8)
    names.append("boundary")
    figure.legend([*handles, line], names, loc="outside lower center", ncols=4, frameon=False)
    figure.savefig(page("images/tilts.png"), dpi=130, facecolor="white")
