"""
Rows from a file, and a run that goes on
========================================

Two hundred thousand rows lie in a file and are read as they are needed. Half-way something stops
the run. The same call, with ``resume=True``, goes on, to the same bits as if nothing had happened.
"""

# sphinx_gallery_thumbnail_path = 'images/gallery/plot_streams.png'

import matplotlib.pyplot as plt
import numpy as np
import optax

import nestax as nx

np.save("returns.npy", nx.datasets.synthetic_returns(200_000, 10).astype(np.float32))
small = nx.problems.mean_deviation(nx.datasets.synthetic_returns(1_000, 10))


def run(**more):
    rows = nx.Stream(np.load("returns.npy", mmap_mode="r"))  # nothing is loaded but what a step needs
    return nx.minimize(
        small.with_data(mean=rows, variance=rows),
        nx.SMVR(beta=0.02),
        optax.sgd(optax.exponential_decay(0.1, 1_000, 0.7)),
        steps=6_000,
        batch_size=16,
        record_every=60,
        **more,
    )


whole = run()
stopped = run(checkpoint="kept", callback=lambda record: record["step"] >= 2_500)
resumed = run(checkpoint=nx.Checkpoint("kept", resume=True))
same = all(np.array_equal(resumed.records[name], whole.records[name]) for name in whole.records)
print(f"stopped at step {stopped.carry.step}; all records and weights equal to the bit: {same}")
assert same
assert np.array_equal(resumed.w, whole.w)

# %%
figure, axes = plt.subplots(figsize=(7, 4.2), layout="constrained")
axes.plot(whole.records["step"], whole.records["value"], color="#d5dbe3", lw=6, label="never stopped")
end = stopped.carry.step
first = resumed.records["step"] <= end
axes.plot(
    resumed.records["step"][first],
    resumed.records["value"][first],
    color="#ea7a2f",
    lw=1.6,
    label="until it was stopped",
)
axes.plot(
    resumed.records["step"][~first],
    resumed.records["value"][~first],
    color="#1f5fa8",
    lw=1.6,
    label="resumed",
)
axes.axvline(end, color="#111827", ls=":", lw=1)
axes.set(xlabel="step", ylabel="tracked value of F", title="One run, with and without an interruption")
axes.legend(frameon=False)
plt.show()

# %%
# **What was learned.** Which rows a step sees depends on its number alone, so a run that was cut in
# two is the run that was not. Only what a step needs was read.
