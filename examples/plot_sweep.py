"""
A sweep as a heat map
=====================

Settings are numbers in a compiled program, so a grid of them is one call: all settings with all
seeds run side by side. How do the forgetting rate and the learning rate go together?
"""

# sphinx_gallery_thumbnail_path = 'images/gallery/plot_sweep.png'

import time

import matplotlib.pyplot as plt
import numpy as np
import optax

import nestax as nx

problem = nx.problems.mean_deviation(nx.datasets.synthetic_returns(1_000, 8))
betas = np.geomspace(0.0003, 1.0, 8)
rates = np.geomspace(0.003, 1.0, 8)

begun = time.perf_counter()
swept = nx.sweep(
    problem,
    lambda s: (nx.SMVR(beta=s.beta), optax.sgd(s.lr)),
    settings=nx.grid(beta=betas, lr=rates),
    seeds=4,
    steps=1_500,
    batch_size=8,
    record=["exact_value"],
)
print(f"{len(betas) * len(rates) * 4} runs in one program, {time.perf_counter() - begun:.0f} seconds")

# %%
# The mean over the last tenth of the records, above the best that was found anywhere.

value = swept.records["exact_value"][:, :, -10:].mean(axis=(1, 2))
gap = (value - swept.records["exact_value"].min()).reshape(len(betas), len(rates))

figure, axes = plt.subplots(figsize=(6.6, 4.8), layout="constrained")
image = axes.pcolormesh(rates, betas, np.log10(gap), cmap="viridis_r", shading="nearest")
row, column = np.unravel_index(gap.argmin(), gap.shape)
axes.plot(rates[column], betas[row], "*", color="white", ms=18, mec="#111827")
axes.set(xscale="log", yscale="log", xlabel="learning rate", ylabel="forgetting rate β")
axes.set(title="How far above the best, powers of ten; β = 1 remembers nothing")
figure.colorbar(image, ax=axes)
plt.show()

# %%
worse = gap[-1].min() / gap.min()
print(f"best: beta {betas[row]:.3f}, learning rate {rates[column]:.3f}")
print(f"the best without memory is {worse:.0f} times as far above it")
assert worse > 2

# %%
# **What was learned.** Little forgetting wants a learning rate of its own; where β is large the
# best rate is another, and so is what can be reached. All 256 runs cost one compilation, so there
# is no reason to guess.
