"""
Stages against constant steps
=============================

A constant learning rate is quick and stays away from the optimum, or slow and comes near. Stages
begin quickly and halve the forgetting rate, with a shorter step and twice the length, from stage to
stage.
"""

# sphinx_gallery_thumbnail_path = 'images/gallery/plot_stages.png'

import matplotlib.pyplot as plt
import numpy as np
import optax

import nestax as nx

problem = nx.problems.convex_chain(levels=3)
stages = nx.theory.halving(steps=60, lr=0.1, beta=0.5, stages=10)
steps = sum(stage.steps for stage in stages)
ends = np.cumsum([stage.steps for stage in stages])
how = {"batch_size": 4, "record_every": 20}
seeds = range(4)


def gap(run):
    return run.records["step"], run.records["gap"]


runs = {"ten stages": [gap(nx.solve_stages(problem, stages, seed=seed, **how)) for seed in seeds]}
for first, name in (
    (stages[0], "constant, as in the first stage"),
    (stages[-1], "constant, as in the last stage"),
):
    method = nx.SMVR(beta=first.beta)
    runs[name] = [
        gap(nx.minimize(problem, method, optax.sgd(first.lr), steps=steps, seed=seed, **how))
        for seed in seeds
    ]

# %%
figure, axes = plt.subplots(figsize=(7, 4.4), layout="constrained")
for end in ends[:-1]:
    axes.axvline(end, color="#d5dbe3", lw=1, zorder=0)
for (name, lines), colour in zip(runs.items(), ("#1f5fa8", "#ea7a2f", "#9aa5b4"), strict=True):
    step = lines[0][0]
    mean = np.mean([line[1] for line in lines], axis=0)
    smooth = np.convolve(mean, np.ones(5) / 5, mode="valid")
    axes.loglog(step[4:][1:], smooth[1:], color=colour, lw=1.8, label=name)
axes.set(xlabel="step", ylabel="F(w) − F*", title="Mean of four runs; a line where a stage begins")
axes.legend(frameon=False)
plt.show()

# %%
last = {name: float(np.mean([line[1][-20:].mean() for line in lines])) for name, lines in runs.items()}
print({name: f"{value:.1e}" for name, value in last.items()})
assert last["ten stages"] < last["constant, as in the first stage"] / 2

# %%
# **What was learned.** Stages are as quick as their first settings for the first thousand steps and
# end where their last settings end. In between the last settings alone are ahead; but those had to
# be known.
