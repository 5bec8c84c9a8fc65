"""
A method of your own
====================

A method is two pure functions: a first estimate, and the next one. This one tracks the value of
every level by a moving average and takes its derivatives fresh; the loop, the step rule, records,
sweeps and comparisons come with the library.
"""

# sphinx_gallery_thumbnail_path = 'images/gallery/plot_own_method.png'

from typing import Any

import equinox as eqx
import matplotlib.pyplot as plt

import nestax as nx
from nestax.parts import UNIT, Calls, Setting, Trackers, average, pull_through, setting


class AverageState(eqx.Module):
    w: Any
    value: tuple


class Average(nx.AbstractEstimator):
    """u ← (1 − β)u + β·f(u of the level before; draws), with the derivatives of this step."""

    beta: Setting = setting(UNIT, default=0.1)

    @property
    def passes(self):
        return {"value": Calls(values=1, derivatives=1)}

    def init(self, problem, w, batches):
        return self._estimate(problem, w, batches, None)

    def update(self, problem, w, batches, state):
        return self._estimate(problem, w, batches, state.value)

    def _estimate(self, problem, w, batches, remembered):
        point, value, pulls = w, [], []
        for i, (level, batch) in enumerate(zip(problem.levels, batches, strict=True)):
            u, pull = level.value_and_pull(point, batch["value"])
            if remembered is not None and not level.deterministic:
                u = average(remembered[i], self.beta, u)
            point = level.project(u)
            value.append(point)
            pulls.append(pull)
        grad = pull_through(pulls, value[-1])
        return nx.Estimate(value[-1], grad, {}), AverageState(w, tuple(value))

    def trackers(self, state):
        return Trackers(state.w, state.value)


# %%
# One call tells whether it keeps the contract; then it stands beside the others, each at its best
# learning rate, with the same samples.

print(nx.testing.check_method(Average))
returns = nx.datasets.synthetic_returns(2_000, 8)
least = nx.problems.exact_portfolio(returns).least().value  # by Newton's method, with a proof
problem = nx.problems.mean_deviation(returns, optimum=least)
compared = nx.compare(
    problem,
    ["Plain", Average, "SMVR", "SelfTuning"],
    samples=60_000,
    batch_size=8,
    seeds=5,
    tune_seeds=2,
)
print(compared)

figure, axes = plt.subplots(figsize=(7, 4.4), layout="constrained")
colours = {"Plain": "#ea7a2f", "Average": "#7c5cbf", "SMVR": "#1f5fa8", "SelfTuning": "#2f855a"}
for name, run in compared.runs.items():
    gap = run.records["gap"][0]
    axes.loglog(run.records["samples"][1:], gap.mean(0)[1:], color=colours[name], label=name)
axes.set(xlabel="samples", ylabel="F(w) − F*", title="A new method beside three of the library")
axes.legend(frameon=False)
plt.show()

# %%
# **What was learned.** Thirty lines make a method that keeps the contract and can be compared. This
# one is hardly better than no memory: an average of values that belong to older weights lags behind
# them, and derivatives are not remembered at all. What the others do besides is to evaluate the
# same draws at the old weights, and so to know how far a level has moved.
