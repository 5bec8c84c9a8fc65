"""How near nx.sklearn.MeanDeviationPortfolio comes to the optimum: a table of docs/scikit-learn.md.

``python benchmarks/portfolio_estimator.py`` fits it in single precision with its own settings, compares
F(w) with the optimum in float64, and writes the page and benchmarks/results/portfolio_estimator.json.
Industry returns are from NESTAX_DATA if it holds them.
"""

import json
from collections.abc import Callable
from typing import Any

import numpy as np

import nestax as nx
from nestax.table import Table
from pages import fill
from real_data import industry
from script import few, parser, results, size

RETURNS: dict[str, Callable[[], np.ndarray]] = few(
    {
        "1,000 × 5, synthetic": lambda: nx.datasets.synthetic_returns(1_000, 5),
        "1,000 × 30, industries": lambda: industry(30)[:1_000],
        "25,105 × 10, industries": lambda: industry(10)[:25_105],
        "25,105 × 30, industries": lambda: industry(30)[:25_105],
        "25,000 × 50, synthetic": lambda: nx.datasets.synthetic_returns(25_000, 50),
    },
    small=1,
)
SEEDS = size(10, small=2)


def measure(returns: np.ndarray) -> dict[str, Any]:
    """Gaps in units of s, at the start and of every seed, and the steps of every seed."""
    returns = np.asarray(returns, np.float64)
    fits = [nx.sklearn.MeanDeviationPortfolio(random_state=k).fit(returns) for k in range(SEEDS)]
    s = fits[0].scale_
    exact = nx.problems.exact_portfolio(returns, risk=0.2, delta=fits[0].delta * s**2)
    least = exact.least().value
    gap = lambda w: float((exact.value(np.asarray(w, np.float64)) - least) / s)
    assets = returns.shape[1]
    return {
        "start": gap(np.full(assets, 1 / assets)),
        "gaps": [gap(fit.weights_) for fit in fits],
        "steps": [int(fit.n_iter_) for fit in fits],
    }


def table(cells: dict[str, Any]) -> Table:
    rows = []
    for name, cell in cells.items():
        low, high = min(cell["steps"]), max(cell["steps"])
        steps = f"{low:,}" if low == high else f"{low:,} to {high:,}"
        rows.append([name, f"{cell['start']:.0e}", f"{max(cell['gaps']):.0e}", steps])
    return Table(["returns", "at the start", "largest gap", "steps"], rows)


if __name__ == "__main__":
    parser(__doc__).parse_args()
    measured = {name: measure(returns()) for name, returns in RETURNS.items()}
    results("portfolio_estimator.json").write_text(json.dumps(measured, indent=1))
    fill("scikit-learn.md", {"portfolio": table(measured).to_markdown()})
