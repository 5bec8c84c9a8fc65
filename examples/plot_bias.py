"""
Bias, made visible
==================

Instruments z tell which part of an error is due to x: at the right weights E[z (y − x·w)] = 0. So
minimise the squared length of that mean. Its gradient is a product of two expectations, and a
mini-batch that is plugged in for both multiplies two errors that are not independent. Where does
such a run go?
"""

# sphinx_gallery_thumbnail_path = 'images/gallery/plot_bias.png'

import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
import optax

import nestax as nx

rng = np.random.default_rng(0)
hidden = rng.normal(size=2_000)
z = rng.normal(size=(2_000, 2))
x = z + hidden[:, None]
y = x @ [1.0, -2.0] + hidden
best = np.linalg.solve(z.T @ x, z.T @ y)

problem = nx.Problem(
    [
        nx.Level(lambda w, row: row[2] * (row[1] - row[0] @ w), data=(x, y, z), name="moments"),
        nx.Level(lambda u: jnp.sum(u**2), name="length"),
    ],
    w0=jnp.zeros(2),
    metrics={"first": lambda w: w[0], "second": lambda w: w[1]},  # the path, to draw it
)


def path(method, batch, lr):
    run = nx.minimize(
        problem, method, optax.sgd(lr), steps=8_000, batch_size=batch, record=["first", "second"]
    )
    return run.records["first"], run.records["second"], run.records["step"]


# %%
# Plain batches of three sizes, shorter steps for the smallest, and one run that remembers, with
# batches of four.

runs = {f"Plain, batch {batch}": path(nx.Plain(), batch, 0.01) for batch in (2, 4, 16)}
runs["Plain, batch 2, a third of the step"] = path(nx.Plain(), 2, 0.003)
runs["SelfTuning, batch 4"] = path(nx.SelfTuning(), 4, 0.01)
ends = {name: (run[0][50:].mean(), run[1][50:].mean()) for name, run in runs.items()}

grid = np.stack(np.meshgrid(np.linspace(0.8, 1.6, 80), np.linspace(-2.2, -1.4, 80)), axis=-1)
moments = (z.T @ y - grid @ (z.T @ x).T) / len(y)

figure, (plane, time) = plt.subplots(1, 2, figsize=(9, 4.2), layout="constrained")
plane.contour(
    grid[..., 0], grid[..., 1], np.sqrt(np.sum(moments**2, axis=-1)), 14, colors="#d5dbe3", zorder=0
)
colours = ["#9a3412", "#ea7a2f", "#f2b880", "#7c5cbf", "#1f5fa8"]
for (name, run), colour in zip(runs.items(), colours, strict=True):
    plane.plot(run[0][50:], run[1][50:], ".", color=colour, ms=4, alpha=0.5)
    plane.plot(*ends[name], "o", color=colour, ms=11, mec="white", label=name)
    time.semilogy(run[2], np.hypot(run[0] - best[0], run[1] - best[1]), color=colour, lw=1.3)
plane.plot(*best, "*", color="#111827", ms=16, mec="white", zorder=5, label="the minimum of F")
plane.set(xlabel="first weight", ylabel="second weight", title="Where the second half of each run is")
plane.set(xlim=(0.8, 1.6), ylim=(-2.2, -1.4))
time.set(xlabel="step", title="Distance from the minimum")
figure.legend(*plane.get_legend_handles_labels(), loc="outside lower center", ncols=3, frameon=False)
plt.show()

# %%
far = {name: float(np.hypot(*(end - best))) for name, end in ends.items()}
print("\n".join(f"{name:36} {distance:.2f}" for name, distance in far.items()))
assert (
    far["SelfTuning, batch 4"]
    < 0.03
    < far["Plain, batch 16"]
    < far["Plain, batch 4"]
    < far["Plain, batch 2"]
)
assert abs(far["Plain, batch 2"] - far["Plain, batch 2, a third of the step"]) < 0.05

# %%
# **What was learned.** Plain batches converge, to a point that is not the minimum: how far away it
# lies is a matter of the batch size, and no learning rate changes it. A run that remembers the
# levels ends at the minimum with batches of four.
