"""
A network in Flax, and a memory that loses
==========================================

A KL-robust loss, λ·log E exp(loss/λ), looks at the rows that a network serves worst. The mean
stands inside a logarithm, so a batch of eight is biased, and ``nx.nnx.Tracked`` is a layer that
remembers the mean; everything else is Flax. Whether it pays is another question.
"""

# sphinx_gallery_thumbnail_path = 'images/gallery/plot_flax.png'

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import optax
from flax import nnx

import nestax as nx

TEMPERATURE = 0.2
keys = jax.random.split(jax.random.key(0), 2)
x = jax.random.uniform(keys[0], (2_000, 1), minval=-3, maxval=3)
rare = jnp.abs(x[:, 0] - 1.8) < 0.15  # a twentieth of the rows, with a bump
y = jnp.sin(x[:, 0]) + jnp.where(rare, 1.5, 0.0) + 0.1 * jax.random.normal(keys[1], (2_000,))


class Network(nnx.Module):
    def __init__(self, rngs, beta):
        self.first = nnx.Linear(1, 48, rngs=rngs)
        self.second = nnx.Linear(48, 48, rngs=rngs)
        self.last = nnx.Linear(48, 1, rngs=rngs)
        self.tracked = nx.nnx.Tracked(beta=beta, log=True)

    def __call__(self, x):
        return self.last(nnx.tanh(self.second(nnx.tanh(self.first(x)))))[:, 0]

    def loss(self, rows):
        losses = (self(x[rows]) - y[rows]) ** 2
        inner = jax.nn.logsumexp(losses / TEMPERATURE) - jnp.log(len(rows))
        return TEMPERATURE * self.tracked(inner)  # the log of a mean, remembered


def train(beta, batch=8, steps=4_000):
    model = Network(nnx.Rngs(0), beta)
    optimizer = nnx.Optimizer(model, optax.adam(optax.cosine_decay_schedule(3e-3, steps)), wrt=nnx.Param)

    @nnx.jit
    def some_steps(model, optimizer, keys):
        def step(both, key):
            rows = jax.random.choice(key, len(x), (batch,))
            grad = nnx.grad(lambda model: model.loss(rows))(both[0])
            both[1].update(both[0], grad)
            return both

        return nnx.scan(step, in_axes=(nnx.Carry, 0), out_axes=nnx.Carry)((model, optimizer), keys)

    some_steps(model, optimizer, jax.random.split(jax.random.key(1), steps))
    return model


def robust(model):
    losses = (model(x) - y) ** 2
    return float(TEMPERATURE * (jax.nn.logsumexp(losses / TEMPERATURE) - jnp.log(len(x))))


# %%
# β = 1 remembers nothing: that is the loss of the batch.

models = {"batch of 8": train(1.0), "batch of 8, remembered": train(0.05)}
grid = jnp.linspace(-3, 3, 400)[:, None]
figure, axes = plt.subplots(figsize=(7, 4.4), layout="constrained")
axes.plot(x[:, 0], y, ".", ms=2, color="#9aa5b4", alpha=0.6)
for (name, model), colour in zip(models.items(), ("#ea7a2f", "#1f5fa8"), strict=True):
    axes.plot(
        grid[:, 0], model(grid), color=colour, lw=2, label=f"{name}: robust loss {robust(model):.3f}"
    )
axes.set(xlabel="x", ylabel="y", title="One row in twenty lies on the bump")
axes.legend(frameon=False)
plt.show()

# %%
print({name: round(robust(model), 3) for name, model in models.items()})
assert robust(models["batch of 8"]) < robust(models["batch of 8, remembered"])

# %%
# **What was learned.** A layer is one line, and here it does harm. In a batch alone the weights of
# its rows add up to one, whatever their losses. Against a remembered mean a single rare row with a
# large loss counts many times, or hardly at all, and a network with Adam follows these bursts. So
# measure before you remember: compare the loss of all rows, as here.
