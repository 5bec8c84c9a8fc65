"""
Error bars of levels
====================

``nx.SelfTuning`` measures how far draws spread and how far levels move, and so knows how wrong its
trackers are, without a population to compare them with. Here there is one, and the belief can be
checked.
"""

# sphinx_gallery_thumbnail_path = 'images/gallery/plot_error_bars.png'

import matplotlib.pyplot as plt
import numpy as np
import optax

import nestax as nx

problem = nx.problems.mean_deviation(nx.datasets.synthetic_returns(2_000, 8), least_variance=0.01)
columns = ["value_error", "believed_error", "plain_error"]
runs = [
    nx.minimize(
        problem,
        nx.SelfTuning(),
        optax.sgd(0.03),
        steps=4_000,
        batch_size=8,
        record=["value_error"],
        record_every=40,
        seed=seed,
    )
    for seed in range(12)
]
print(runs[0].diagnosis)
steps = runs[0].records["step"]
root_mean_square = lambda name: np.sqrt(np.mean([run.records[name] ** 2 for run in runs], axis=0))

# %%
figure, panels = plt.subplots(1, 2, figsize=(9, 3.9), layout="constrained")
for i, panel in enumerate(panels):
    for run in runs:
        panel.semilogy(steps[1:], run.records["value_error"][1:, i], color="#9aa5b4", lw=0.4, alpha=0.6)
    panel.plot([], [], color="#9aa5b4", lw=0.8, label="the error of each run")
    panel.semilogy(
        steps[1:],
        root_mean_square("value_error")[1:, i],
        color="#111827",
        lw=1.5,
        label="their root mean square",
    )
    panel.semilogy(
        steps[1:],
        root_mean_square("believed_error")[1:, i],
        color="#1f5fa8",
        lw=2,
        label="what the method believes",
    )
    panel.semilogy(
        steps[1:],
        root_mean_square("plain_error")[1:, i],
        color="#ea7a2f",
        lw=2,
        label="a batch without memory",
    )
    panel.set(title=f"level {problem.levels[i].name!r}", xlabel="step")
panels[0].set(ylabel="error of the level's value")
panels[0].legend(frameon=False, fontsize=8)
plt.show()

# %%
late = slice(len(steps) // 2, None)
for i, level in enumerate(problem.levels[:2]):
    truth, belief, plain = (root_mean_square(name)[late, i].mean() for name in columns)
    print(f"{level.name:9} error {truth:.4f}, believed {belief:.4f}, without memory {plain:.4f}")
    assert 1 / 2 < belief / truth < 2
    assert truth < plain / 2

# %%
# **What was learned.** What the method believes about its trackers is right within a factor of two
# here, and far below the error of a batch: a memory can say how much it is worth.
