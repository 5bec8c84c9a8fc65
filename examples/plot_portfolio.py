"""
A portfolio against equal weights
=================================

Mean minus a price times the deviation is a chain of three levels: the deviation is the root of an
expectation around another expectation. What do weights that were found on ten years of returns buy
on the years that follow, and is it more than equal weights do, which need no optimiser?
"""

# sphinx_gallery_thumbnail_path = 'images/gallery/plot_portfolio.png'

import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
import optax

import nestax as nx

returns = nx.datasets.synthetic_returns(5_000, 10)  # a row a day, in percent
past, future = returns[:2_500], returns[2_500:]
equal = np.full(10, 0.1)


def point(w, rows):
    """Deviation and mean of a portfolio, per year."""
    daily = rows @ np.asarray(w)
    return np.sqrt(252) * daily.std(), 252 * daily.mean()


# %%
# A frontier is a sweep over the price of risk: ``args=`` of a level are numbers that may differ
# from run to run, and all runs are one compiled program.

problem = nx.Problem(
    [
        nx.Level(lambda x, r: (r @ x, x), data=past, name="mean"),
        nx.Level(
            lambda u, r: (u[0], (r @ u[1] - u[0]) ** 2),
            data=past,
            project=lambda u: (u[0], u[1].clip(1e-4)),
            name="variance",
        ),
        nx.Level(lambda u, price: -u[0] + price * jnp.sqrt(u[1]), args=(0.2,), name="utility"),
    ],
    w0=jnp.asarray(equal),
    project=nx.projections.simplex,
)
prices = [0.02, 0.05, 0.08, 0.12, 0.2, 0.4, 1.0]
frontier = nx.sweep(
    problem,
    lambda s: (problem.with_args(utility=(s.price,)), nx.SnapshotSMVR(beta=0.01), optax.sgd(0.1)),
    settings=nx.grid(price=prices),
    seeds=1,
    steps=3_000,
    batch_size=16,
)

figure, axes = plt.subplots(figsize=(7, 4.6), layout="constrained")
for rows, name, colour in (
    (past, "the years it was found on", "#1f5fa8"),
    (future, "the years after", "#2f855a"),
):
    points = np.array([point(w, rows) for w in frontier.w[:, 0]])
    axes.plot(*points.T, "o-", color=colour, label=f"nestax, {name}")
    axes.plot(*point(equal, rows), "s", color=colour, mfc="white", ms=9, label=f"equal weights, {name}")
for asset in returns.T:
    axes.plot(np.sqrt(252) * asset.std(), 252 * asset.mean(), ".", color="#9aa5b4")
axes.plot([], [], ".", color="#9aa5b4", label="one asset each")
axes.set(xlabel="deviation, percent a year", ylabel="mean, percent a year", title="Risk and return")
axes.legend(frameon=False)
plt.show()

# %%
chosen = frontier.w[prices.index(0.2), 0]
value = lambda w, rows: -rows.dot(w).mean() + 0.2 * rows.dot(w).std()
for name, rows in (("past", past), ("future", future)):
    print(f"{name}: F(w) = {value(chosen, rows):.4f}, equal weights {value(equal, rows):.4f}")
assert value(chosen, past) < value(equal, past)

# %%
# **What was learned.** On the years that follow, the frontier still runs through less risk at the
# same return than equal weights have, and more return at the same risk; but it lies well below the
# one that the past had promised. Returns are made up here, by a market that stays the same.
