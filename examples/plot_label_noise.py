"""
A robust loss against wrong labels
==================================

The mean of a loss gives a row that is far on the wrong side as much say as it asks for. A tilted
mean, (1/t)·log E exp(t·loss), gives such rows less where t is negative. The logarithm is taken of
an expectation: a chain of two levels, and biased for plain batches.
"""

# sphinx_gallery_thumbnail_path = 'images/gallery/plot_label_noise.png'

import matplotlib.pyplot as plt
import numpy as np
import optax

import nestax as nx

rng = np.random.default_rng(3)
rows = 400
y = rng.integers(2, size=rows)
X = rng.normal(size=(rows, 2)) + 2.2 * np.stack([y, 0.3 * y], axis=1) - [1.1, 0.15]
clean = y.copy()
far = X @ [1.0, -1.0] > 1.2  # whoever labelled the rows in that corner had a bad day
y[far] = 0

X_test = rng.normal(size=(4_000, 2))
y_test = rng.integers(2, size=4_000)
X_test += 2.2 * np.stack([y_test, 0.3 * y_test], axis=1) - [1.1, 0.15]


def fit(tilt, labels=y):
    problem = nx.problems.term(X, labels, "logistic", tilt, intercept=True)
    return nx.minimize(problem, nx.SelfTuning(), optax.adam(0.03), steps=3_000, batch_size=8).w


def right(w):
    return float(np.mean((X_test @ np.asarray(w["slope"]) + w["intercept"] > 0) == y_test))


# %%
fitted = {f"tilt {tilt:g}": fit(tilt) for tilt in (-1.0, -3.0)}
fitted = {"the mean": fit(0.0), **fitted, "the mean, all labels right": fit(0.0, clean)}

figure, axes = plt.subplots(figsize=(7, 5.2), layout="constrained")
wrong = y != clean
axes.scatter(*X[(y == 1)].T, s=14, color="#2f855a", alpha=0.6, label="labelled 1")
axes.scatter(*X[(y == 0) & ~wrong].T, s=14, color="#9aa5b4", alpha=0.6, label="labelled 0")
axes.scatter(*X[wrong].T, s=34, marker="x", color="#9a3412", label=f"wrong: {wrong.mean():.0%}")
across = np.linspace(-4, 4, 2)
colours = ("#ea7a2f", "#6aa0d8", "#1f5fa8", "#111827")
for (name, w), colour in zip(fitted.items(), colours, strict=True):
    slope, offset = np.asarray(w["slope"]), float(w["intercept"])
    line = "--" if name.endswith("right") else "-"
    axes.plot(
        across,
        -(offset + slope[0] * across) / slope[1],
        line,
        color=colour,
        lw=2,
        label=f"{name}: {right(w):.0%}",
    )
axes.set(
    xlim=(-4, 4),
    ylim=(-3.5, 3.5),
    title="Where the boundary goes, and how many of 4,000 new rows it gets right",
)
figure.legend(
    *axes.get_legend_handles_labels(), loc="outside lower center", ncols=3, frameon=False, fontsize=9
)
plt.show()

# %%
print({name: f"{right(w):.1%}" for name, w in fitted.items()})
assert (
    right(fitted["the mean"]) + 0.05
    < right(fitted["tilt -3"])
    < right(fitted["the mean, all labels right"]) + 0.02
)

# %%
# **What was learned.** One corner of wrong labels turns the boundary of the mean; a negative tilt
# looks away from the rows that do not fit, and turns it back. It is no free lunch: rows that are
# rare and right look the same to it.
