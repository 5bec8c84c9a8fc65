"""
Where the bias comes from
=========================

The logarithm of a mean is wanted, and means of a few draws are to be had. The logarithm bends, so
values that fall short cost more than values that exceed give back: on average the logarithm of a
batch is too small. How much, and what is it worth to remember?
"""

# sphinx_gallery_thumbnail_path = 'images/gallery/plot_jensen.png'

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np

import nestax as nx

rng = np.random.default_rng(0)
returns = nx.datasets.synthetic_returns(5_000, 10)
pain = np.exp(-0.5 * returns @ np.full(10, 0.1))  # of every day, at equal weights
batches = lambda size: rng.choice(pain, size=(20_000, size)).mean(axis=1)
sizes = np.array([1, 2, 4, 8, 16, 32, 64])
short = np.array([np.log(pain.mean()) - np.log(batches(size)).mean() for size in sizes])

# %%
# A tracker at rest: the weights stay where they are, and draws of four come in, one step after the
# other.


def step(state, batch):
    u, state = nx.track(batch, state, beta=0.03)
    return state, u


draws = jnp.asarray(rng.choice(pain, size=(4_000, 4)).mean(axis=1))
tracked = np.asarray(jax.lax.scan(step, nx.track_init(draws[0]), draws)[1])

figure, (left, right) = plt.subplots(1, 2, figsize=(9.4, 4.3), layout="constrained")
u = np.linspace(0.4, 2.7, 200)
fours = batches(4)
left.plot(u, np.log(u), color="#111827", lw=1.5)
left.plot(
    fours[:150],
    np.log(fours[:150]),
    "o",
    color="#ea7a2f",
    alpha=0.35,
    ms=5,
    label="log of a mean of four",
)
left.plot(
    tracked[100:],
    np.log(tracked[100:]),
    ".",
    color="#1f5fa8",
    ms=5,
    label="log of the tracked mean, four draws a step",
)
left.axhline(np.log(pain.mean()), color="#111827", ls=":", lw=1.2)
left.axhline(np.log(fours).mean(), color="#ea7a2f", ls=":", lw=1.6)
left.text(2.65, np.log(pain.mean()) + 0.02, "log of the mean of all days", ha="right", fontsize=9)
left.text(
    2.65,
    np.log(fours).mean() - 0.1,
    "mean of the logs of fours",
    ha="right",
    fontsize=9,
    color="#c2560c",
)
left.set(
    xlabel="mean of the draws", ylabel="its logarithm", xlim=(0.4, 2.7), title="The logarithm bends"
)
left.legend(frameon=False, loc="upper left", fontsize=9)
right.loglog(sizes, short, "o-", color="#ea7a2f", label="too small by, on average")
right.loglog(
    sizes,
    pain.var() / (2 * sizes * pain.mean() ** 2),
    color="#9aa5b4",
    ls="--",
    label="variance / (2·batch·mean²)",
)
right.set(xlabel="draws in a batch", title="Larger batches buy it off, at their price")
right.set(xticks=sizes, xticklabels=sizes)
right.minorticks_off()
right.legend(frameon=False)
plt.show()

# %%
far = np.log(pain.mean()) - np.mean(np.log(tracked[100:]))
print(f"batches of four are too small by {short[2]:.3f}, tracked ones by {far:.3f}")
assert abs(far) < short[2] / 2

# %%
# **What was learned.** The error does not average out over steps: every batch of four is too small
# in the same direction. It falls as one over the batch size. Remembering the mean takes the
# logarithm of many batches at the price of one.
