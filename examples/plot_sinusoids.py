"""
Learning to learn: sinusoids from five points
=============================================

Weights from which two steps of gradient descent on a few points of a new curve lead to that curve.
Every inner step is a level with draws of its own, and every task has its own chain.
"""

# sphinx_gallery_thumbnail_path = 'images/gallery/plot_sinusoids.png'

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
import optax

import nestax as nx

INNER = 0.02
network = nx.problems.networks.perceptron(1, 20, 20, 1)
problem = nx.problems.maml(
    network.apply,
    nx.datasets.sinusoids(32),  # tasks, each with 20 points to learn from and 20 to be judged by
    network.init,
    visit=8,
    inner_steps=2,
    inner_lr=INNER,
    score={"new tasks": nx.datasets.sinusoids(40, seed=1)},
)
run = nx.minimize(
    problem,
    nx.PerBlock(nx.SCSC(0.6)),
    optax.adam(0.005),
    steps=4_000,
    batch_size=5,
    record=["value", "new tasks"],
    record_every=200,
)

# %%
# A curve that it has never seen, of which five points are known.

grid = np.linspace(-5, 5, 200)[:, None]
curve = lambda x: 3.2 * np.sin(x + 1.1)
known = np.array([-4.2, -2.0, -0.4, 1.6, 3.9])[:, None]


def adapted(w, steps):
    loss = lambda w: jnp.mean((network.apply(w, known) - curve(known)) ** 2)
    for _ in range(steps):
        w = jax.tree.map(lambda a, g: a - INNER * g, w, jax.grad(loss)(w))
    return np.asarray(network.apply(w, grid))[:, 0]


figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.9), layout="constrained")
untrained = nx.minimize(problem, nx.Plain(), optax.sgd(0.0), steps=1, batch_size=5, record=["value"]).w
left.plot(grid, curve(grid), color="#9aa5b4", lw=5, alpha=0.5, label="the curve")
left.plot(grid, adapted(untrained, 10), color="#ea7a2f", ls="--", label="ten steps from random weights")
left.plot(grid, adapted(run.w, 0), color="#1f5fa8", ls=":", label="learned weights, no step")
left.plot(grid, adapted(run.w, 10), color="#1f5fa8", label="learned weights, ten steps")
left.plot(known, curve(known), "o", color="#111827", label="five points")
left.set(title="A curve never seen before", ylim=(-5, 8))
left.legend(frameon=False, fontsize=8, loc="upper center", ncols=2)
right.plot(run.records["step"], run.records["new tasks"], color="#1f5fa8")
right.set(xlabel="step", title="Loss on new tasks after two steps", ylim=(0, None))
plt.show()

# %%
error = {
    name: float(np.mean((adapted(w, 10) - curve(grid[:, 0])) ** 2))
    for name, w in (("random", untrained), ("learned", run.w))
}
print(
    {name: round(value, 2) for name, value in error.items()}, run.records["new tasks"][[0, -1]].round(2)
)
assert error["learned"] < error["random"] / 2

# %%
# **What was learned.** The weights that were learned are no curve of the family themselves. Ten
# steps on five points turn them into one, where the same steps from random weights lead nowhere.
