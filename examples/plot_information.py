"""
Where to measure: expected information gain
===========================================

A source hides somewhere near the origin, and one noisy reading of its strength can be taken at a
place of our choice. What that reading tells on average is a mean of logarithms of means: of all
readings that may come, and for each of all places where the source may be.
"""

# sphinx_gallery_thumbnail_path = 'images/gallery/plot_information.png'

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
import optax

import nestax as nx

rng = np.random.default_rng(0)
SIGMA, READINGS, PLACES = 0.15, 400, 300
source = rng.normal(size=(READINGS, 2)).astype(np.float32)
noise = SIGMA * rng.normal(size=READINGS).astype(np.float32)
others = rng.normal(size=(READINGS, PLACES, 2)).astype(np.float32)


def strength(place, d):
    return 1 / (0.3 + jnp.sum((place - d) ** 2, axis=-1))


def likelihood(d, row):
    """How well a reading fits another place than the true one."""
    place, error, other = row
    return jnp.exp(-((strength(place, d) + error - strength(other, d)) ** 2) / (2 * SIGMA**2))


each = lambda x: np.repeat(x[:, None], PLACES, axis=1)
problem = nx.Problem(
    [
        nx.Level(
            likelihood,
            data=nx.Blocks((each(source), each(noise), others), visit=16),
            project=lambda u: u.clip(1e-3),
            name="fit of other places",
        ),
        nx.Level(lambda u: jnp.log(u + 1e-3), name="log"),
    ],
    w0=jnp.array([2.6, 1.2]),
    metrics={"x": lambda d: d[0], "y": lambda d: d[1]},
)


def path(method):
    run = nx.minimize(problem, method, optax.adam(0.02), steps=1_000, batch_size=2, record=["x", "y"])
    return run.records["x"], run.records["y"]


runs = {"Plain, two places a reading": path(nx.Plain()), "SOX, remembered": path(nx.SOX(0.2, 0.3))}


# %%
# The gain itself, from all readings and places.


@jax.jit
def gain(d):
    fit = likelihood(d, (source[:, None], noise[:, None], others))
    return jnp.mean(-(noise**2) / (2 * SIGMA**2) - jnp.log(fit.mean(axis=1) + 1e-3))


axis = np.linspace(-1.0, 3.0, 41).astype(np.float32)
grid = jnp.stack(jnp.meshgrid(axis, axis), axis=-1).reshape(-1, 2)
map_of_gain = np.asarray(jax.lax.map(gain, grid)).reshape(41, 41)
ends = {name: jnp.array([run[0][-20:].mean(), run[1][-20:].mean()]) for name, run in runs.items()}

figure, axes = plt.subplots(figsize=(6.6, 5), layout="constrained")
image = axes.contourf(axis, axis, map_of_gain, 16, cmap="Greys", alpha=0.8)
figure.colorbar(image, ax=axes, label="expected information gain")
for (name, run), colour in zip(runs.items(), ("#ea7a2f", "#1f5fa8"), strict=True):
    axes.plot(*run, color=colour, lw=1.6, label=f"{name}: {gain(ends[name]):.2f}")
    axes.plot(*ends[name], "o", color=colour, ms=9, mec="white")
axes.plot(2.6, 1.2, "s", color="#111827", label=f"where it begins: {gain(problem.w0):.2f}")
axes.set(xlabel="place of the reading", title=f"The best of the map is {map_of_gain.max():.2f}")
axes.legend(loc="upper left")
plt.show()

# %%
print({name: f"{gain(d):.2f}" for name, d in ends.items()}, f"best {map_of_gain.max():.2f}")
assert gain(ends["Plain, two places a reading"]) > map_of_gain.max() - 0.1

# %%
# **What was learned.** Sixteen readings a step, each held against two other places, find the place
# that tells most. A memory for every reading loses here: a reading comes back every 25 steps, and
# by then the place has moved far. Where that is so, plain batches are the better tool.
