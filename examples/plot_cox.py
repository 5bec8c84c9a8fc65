"""
Cox's model from two rows at a time
===================================

In Cox's partial likelihood every event is compared with all rows that are still at risk, so a loss
of a batch compares it with the few that happen to be in the batch. A memory of every row's risk
gives the loss of all rows, from batches of two. What difference does that make, where the hazards
are not quite those of the model?
"""

# sphinx_gallery_thumbnail_path = 'images/gallery/plot_cox.png'

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
import optax

import nestax as nx

keys = jax.random.split(jax.random.key(0), 4)
rows = 600
x = jax.random.normal(keys[0], (rows, 3))
frail = jax.random.gamma(keys[1], 0.5, (rows,)) * 2  # something nobody has measured
hazard = frail * jnp.exp(2 * x @ jnp.array([1.0, -1.0, 0.5]))
time = jax.random.exponential(keys[2], (rows,)) / hazard
event = (time < 3).astype(float)
time = time.clip(max=3)


def remembered(w, state, batch):
    return nx.losses.cox(x[batch] @ w, state, batch)


def within(w, state, batch):
    """The partial likelihood of the batch, as if no other rows were there."""
    risk, t = x[batch] @ w, time[batch]
    at_risk = t[None, :] >= t[:, None]
    total = jax.nn.logsumexp(jnp.where(at_risk, risk[None, :], -jnp.inf), axis=1)
    return jnp.mean(event[batch] * (total - risk)), state


def fit(loss, batch, seen=24_000, rate=0.1):
    """The mean of the weights over the second half of the steps, as single ones are noisy."""
    steps = seen // batch
    optimizer = optax.sgd(optax.linear_schedule(rate, rate / 10, steps))

    def step(carry, key):
        w, state, memory = carry
        chosen = jax.random.choice(key, rows, (batch,), replace=False)
        grad, state = jax.grad(loss, has_aux=True)(w, state, chosen)
        updates, memory = optimizer.update(grad, memory)
        w = optax.apply_updates(w, updates)
        return (w, state, memory), w

    @jax.vmap
    def path(key):
        start = jnp.zeros(3), nx.losses.risk_sets(time, event), optimizer.init(jnp.zeros(3))
        return jax.lax.scan(step, start, jax.random.split(key, steps))[1]

    return np.asarray(jax.jit(path)(jax.random.split(keys[3], 3))[:, steps // 2 :].mean(axis=1))


# %%
# All rows at every step, which is the answer; then batches, three runs each.

answer = fit(remembered, rows, seen=300 * rows, rate=2.0)[0]
sizes = [2, 4, 8, 16, 32]
alone = [np.linalg.norm(fit(within, batch) - answer, axis=1) for batch in sizes]
together = [np.linalg.norm(fit(remembered, batch) - answer, axis=1) for batch in sizes]

figure, axes = plt.subplots(figsize=(7, 4.4), layout="constrained")
for runs, colour, name in (
    (alone, "#ea7a2f", "the batch alone"),
    (together, "#1f5fa8", "with a memory of all rows"),
):
    axes.loglog(sizes, np.mean(runs, axis=1), "-", color=colour, lw=2, label=name)
    axes.loglog(np.repeat(sizes, 3), np.ravel(runs), "o", color=colour, ms=4, alpha=0.5)
axes.set(xlabel="rows in a batch", ylabel="distance from the weights of all rows")
axes.set(xticks=sizes, xticklabels=sizes, title="Cox's model, 600 rows; 24,000 rows seen by every run")
axes.minorticks_off()
axes.legend(frameon=False)
plt.show()

# %%
for batch, one, other in zip(sizes, alone, together, strict=True):
    print(f"{batch:2} rows: alone {one.mean():.3f}, remembered {other.mean():.3f}")
assert together[0].mean() < alone[0].mean() / 2

# %%
# **What was learned.** The likelihood of a batch has an optimum of its own, which is another one
# here, since the model is only an approximation; it comes nearer as batches grow. With a memory of
# the risks, pairs of rows lead to the weights that all rows give.
