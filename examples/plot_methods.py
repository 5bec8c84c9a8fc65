"""
Methods at equal samples
========================

Each method with the learning rate that suits it best, found on other seeds than those that are
shown, and the same number of draws for all: what is a memory worth on a portfolio?
"""

# sphinx_gallery_thumbnail_path = 'images/gallery/plot_methods.png'

import matplotlib.pyplot as plt

import nestax as nx

returns = nx.datasets.synthetic_returns(2_000, 10)
least = nx.problems.exact_portfolio(returns).least().value  # by Newton's method, with a proof
problem = nx.problems.mean_deviation(returns, optimum=least)
names = ["Plain", "SCSC", "NLASG", "SMVR", "SelfTuning", "SnapshotSMVR"]
compared = nx.compare(problem, names, samples=100_000, batch_size=16, seeds=6, tune_seeds=2)
print(compared)

# %%
figure, axes = plt.subplots(figsize=(7, 4.6), layout="constrained")
colours = ["#ea7a2f", "#f2b880", "#7c5cbf", "#6aa0d8", "#1f5fa8", "#2f855a"]
for name, colour in zip(names, colours, strict=True):
    records = compared.runs[name].records
    gap = records["gap"][0]
    axes.loglog(records["samples"][1:], gap.mean(0)[1:], color=colour, lw=1.8, label=name)
    axes.fill_between(
        records["samples"][1:], gap.min(0)[1:], gap.max(0)[1:], color=colour, alpha=0.12, lw=0
    )
axes.set(xlabel="samples", ylabel="F(w) − F*", title="A portfolio of ten assets, six runs each")
axes.legend(frameon=False)
plt.show()

# %%
last = {name: float(compared.runs[name].records["gap"][0, :, -10:].mean()) for name in names}
print({name: f"{gap:.1e}" for name, gap in last.items()})
assert last["SelfTuning"] < last["Plain"] / 3

# %%
# **What was learned.** At equal samples every memory ends below none. What sets its own gains is
# ahead of forgetting rates at their defaults; and where rows lie in memory and passes over them are
# allowed, snapshots leave all others behind.
