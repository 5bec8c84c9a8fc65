"""
Bellman's equation from single moves
====================================

The value of a state is its reward and the discounted value of the state that comes next. A
simulator gives one next state at a time, and the square of a residual of one move is its square
plus the variance of the move: the old problem of double sampling. Here the mean residual of every
state is a level of its own.
"""

# sphinx_gallery_thumbnail_path = 'images/gallery/plot_bellman.png'

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
import optax

import nestax as nx

STATES, DISCOUNT = 60, 0.95
place = np.arange(STATES)
centres = np.linspace(0, STATES, 9)[:-1]
around = lambda x: (x + STATES / 2) % STATES - STATES / 2  # the states form a ring
features = jnp.asarray(np.exp(-(around(place[:, None] - centres) ** 2) / 60))
reward = jnp.asarray(
    np.exp(-(around(place - 15) ** 2) / 12) - 0.8 * np.exp(-(around(place - 40) ** 2) / 12)
)


def residual(w, key):
    """One move from every state: up to seven places to either side."""
    after = (place + jax.random.randint(key, (STATES,), -7, 8)) % STATES
    return reward + DISCOUNT * features[after] @ w - features @ w


problem = nx.Problem(
    [
        nx.Level(residual, nx.Sampler(lambda key: key), name="residual"),
        nx.Level(lambda u: jnp.mean(u**2), name="square"),
    ],
    w0=jnp.zeros(len(centres)),
)
settings = {"optimizer": optax.adam(0.02), "steps": 6_000, "batch_size": 1, "record": ["value"]}
fitted = {"Plain, a move a step": nx.minimize(problem, nx.Plain(), **settings).w}
fitted["SelfTuning, a move a step"] = nx.minimize(problem, nx.SelfTuning(), **settings).w

# %%
# What is right is known here: the mean of all moves.

moves = np.zeros((STATES, STATES))
for shift in range(-7, 8):
    moves[place, (place + shift) % STATES] += 1 / 15
value = np.linalg.solve(np.eye(STATES) - DISCOUNT * moves, np.asarray(reward))
best = np.linalg.lstsq(np.asarray(features - DISCOUNT * moves @ features), np.asarray(reward))[0]
size = lambda w: float(
    np.mean((np.asarray(reward + DISCOUNT * moves @ features @ w - features @ w)) ** 2)
)

figure, axes = plt.subplots(figsize=(7, 4.4), layout="constrained")
axes.plot(place, value, color="#9aa5b4", lw=5, alpha=0.5, label="value of every state")
axes.plot(place, features @ best, color="#111827", ls=":", label="least residual of eight features")
for (name, w), colour in zip(fitted.items(), ("#ea7a2f", "#1f5fa8"), strict=True):
    axes.plot(place, features @ w, color=colour, lw=2, label=name)
axes.set(xlabel="state, on a ring", ylabel="value", title="What a state is worth")
axes.legend(frameon=False)
plt.show()

# %%
excess = {name: size(w) - size(best) for name, w in fitted.items()}
print({name: f"{size(w):.4f}" for name, w in fitted.items()}, f"least {size(best):.4f}")
assert excess["SelfTuning, a move a step"] < excess["Plain, a move a step"] / 4

# %%
# **What was learned.** Squares of single moves are smallest where neighbours look alike, so plain
# batches flatten the values. With the mean residual of every state remembered, one simulated move a
# step is enough for the least residual that the features allow.
