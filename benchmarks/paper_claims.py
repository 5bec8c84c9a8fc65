"""What the experiments of the SMVR paper claim, and whether it is found again: docs/paper-claims.md.

    python benchmarks/paper_claims.py 10 30   runs of Figures 1 and 2 on these markets, on fresh seeds
    python benchmarks/paper_claims.py         the page, from these runs and from those that tilted.py
                                              and maml_trackers.py show

A difference is paired: SMVR less a rival on the same draws, mean ± standard error. A claim of being
ahead of all rivals holds where SMVR is ahead of each by more than two standard errors, fails where it is
behind one by as much, and is open otherwise.
"""

import json
from collections.abc import Callable
from typing import Any

import numpy as np

import maml_trackers
from nestax.table import Table
from pages import fill
from real_data import industry
from script import KEPT, SMALL, parser, results, size

from experiments import tilted
from experiments.portfolio import CONTENDERS, OF_THE_PAPER, ROWS, reproduce_portfolio

MARKETS = (10, 12, 17, 30)
#: docs/portfolios.md reports the first of them; the others are fresh.
SEEDS = size(40, small=4)
FRESH = slice(SEEDS // 2, None)
PAPER_BETAS = "SMVR, β of the paper"
RIVALS = [name for name in OF_THE_PAPER if name != "SMVR"]


def market_file(count: int) -> Any:
    return results(f"paper_claims/industry-{count}.json")


def run_market(count: int) -> dict[str, Any]:
    """Gap and gradient mapping of every seed, at the end of the budget and at half of it."""
    more: dict[str, Any] = {}
    if SMALL:
        more = {"passes": 2, "batch_size": 8, "rates": (0.1,), "tune_seeds": 1}
    name = f"Industry-{count}"
    contenders = {method: CONTENDERS[method] for method in (*OF_THE_PAPER, PAPER_BETAS)}
    found = reproduce_portfolio(
        {name: industry(count)[-ROWS:]}, contenders=contenders, seeds=SEEDS, tell=print, **more
    )
    ends = {}
    for method, trial in found.trials[name].items():
        middle = int(np.searchsorted(trial.samples, trial.samples[trial.end] / 2))
        ends[method] = {"setting": trial.setting} | {
            f"{what}, {where}": getattr(trial, what)[:, record].tolist()
            for what in ("gap", "grad_norm")
            for where, record in (("end", trial.end), ("half", middle))
        }
    balls = {
        kind: {
            f"{radius:g}, lr {lr:g}": gap[:, -1].tolist()
            for radius, lr, gap in zip(ball.radius, ball.lr, ball.gap, strict=True)
        }
        for kind, ball in found.balls[name].items()
    }
    return {"methods": ends, "balls": balls}


# Judging


def paired(x: np.ndarray, unit: float, digits: int) -> str:
    error = x.std(ddof=1) / len(x) ** 0.5
    return f"{unit * x.mean():+.{digits}f} ± {unit * error:.{digits}f}"


def judge(differences: list[np.ndarray]) -> str:
    """Of SMVR less each rival, where less is better."""
    errors = [2 * x.std(ddof=1) / len(x) ** 0.5 for x in differences]
    if any(x.mean() > error for x, error in zip(differences, errors, strict=True)):
        return "fails"
    if all(x.mean() < -error for x, error in zip(differences, errors, strict=True)):
        return "holds"
    return "open"


def row_of(
    own: np.ndarray, rivals: dict[str, np.ndarray], sign: int, unit: float, digits: int
) -> list[str]:
    """The best rival, SMVR less it, and the verdict over all; sign −1 where more is better.

    A rival that diverged in a run does not count.
    """
    whole = {name: other for name, other in rivals.items() if np.isfinite(other).all()}
    if not np.isfinite(own).all():
        lost = f"{np.sum(~np.isfinite(own))} of {own.size} runs diverged"
        return ["–", lost, "fails" if whole else "open"]
    if not whole:
        return ["–", "all rivals diverged in some run", "holds"]
    best = min(whole, key=lambda name: sign * whole[name].mean())
    verdict = judge([sign * (own - other) for other in whole.values()])
    return [best, paired(own - whole[best], unit, digits), verdict]


# The tables


def portfolio_table(kept: dict[int, Any]) -> Table:
    """Figure 1 on fresh seeds, with the paper's own forgetting rates and with smaller ones."""
    columns = ["β of SMVR", "market", "what", "best rival", "SMVR less it, 1e-4", "ahead of all"]
    rows = []
    for words, name in (("0.1, 0.5, 0.9 (paper)", PAPER_BETAS), ("0.01, 0.03, 0.1", "SMVR")):
        for count, found in kept.items():
            for what, word in (("gap", "loss"), ("grad_norm", "gradient mapping")):
                for where in ("half", "end"):
                    of = lambda m, key=f"{what}, {where}", found=found: np.asarray(
                        found["methods"][m][key]
                    )[FRESH]
                    rivals = {rival: of(rival) for rival in RIVALS}
                    judged = row_of(of(name), rivals, 1, 1e4, 2)
                    rows.append([words, f"Industry-{count}", f"{word}, {where} of the budget", *judged])
    return Table(columns, rows)


def ball_table(kept: dict[int, Any]) -> Table:
    """Figure 2: the gap with a ball less that without, at the same learning rate on the same draws."""
    columns = ["market", "ball", "radius 5", "radius 10", "radius 50", "radius 100"]
    rows = []
    for count, found in kept.items():
        for kind, balls in found["balls"].items():
            first = next(iter(balls)).split(", ")[1]
            gap = lambda radius, balls=balls, first=first: np.asarray(balls[f"{radius}, {first}"])[FRESH]
            cells = [paired(gap(radius) - gap("1e+07"), 1e4, 2) for radius in ("5", "10", "50", "100")]
            rows.append([f"Industry-{count}", kind, *cells])
    return Table(columns, rows)


def term_table(found: dict[str, tilted.TiltedRuns]) -> Table:
    columns = ["batches", "set", "what", "best rival", "SMVR less it", "ahead of all"]
    pick: dict[str, tuple[Callable[[tilted.SetRuns], np.ndarray], int, float, int]] = {
        "loss, end": (lambda trial: trial.fits.loss, 1, 1.0, 4),
        "gradient norm, mean over the run": (lambda trial: trial.grad_norm.mean(axis=1), 1, 1.0, 4),
        "rare class, %": (lambda trial: trial.fits.rare, -1, 1.0, 1),
        "overall, %": (lambda trial: trial.fits.overall, -1, 1.0, 1),
    }
    rows = []
    for batches, result in found.items():
        for name, trials in result.trials.items():
            for what, (of, sign, unit, digits) in pick.items():
                rivals = {method: of(trial) for method, trial in trials.items() if method != "SMVR"}
                row = row_of(of(trials["SMVR"]), rivals, sign, unit, digits)
                rows.append([batches, name, what, *row])
    return Table(columns, rows)


def maml_table() -> Table:
    """SMVR against the rivals with the same step, and SMVR-ADAM against those of the paper."""
    columns = ["set-up", "method", "against", "what", "best rival", "difference", "ahead of all"]
    descent = [name for name in maml_trackers.DESCENT if name not in ("SMVR", "Plain")]
    adaptive = [name for name in maml_trackers.ADAPTIVE if name not in ("SMVR-ADAM", "Plain-ADAM")]
    groups = [
        ("SMVR", "rivals of the paper", descent),
        ("SMVR", "no memory", ["Plain"]),
        ("SMVR-ADAM", "rivals of the paper", descent),
        ("SMVR-ADAM", "SMVR", ["SMVR"]),
        ("SMVR-ADAM", "other memories, same step", [*adaptive, *maml_trackers.RESTING]),
        ("SMVR-ADAM", "no memory, same step", ["Plain-ADAM"]),
        ("SMVR-ADAM", "one chain, same step", list(maml_trackers.LITERAL)),
    ]
    rows = []
    for title, records in maml_trackers.RECORDS_OF.items():
        kept = {
            name: json.loads(maml_trackers.file_of(title, name).read_text())["runs"]
            for name in maml_trackers.METHODS[title]
            if maml_trackers.file_of(title, name).is_file()
        }
        for own, words, names in groups:
            there = [name for name in names if name in kept]
            if own not in kept or not there:
                continue
            for key, word in records.items():
                percent = word.endswith("%")
                rivals = {name: np.asarray(kept[name][key]) for name in there}
                judged = row_of(
                    np.asarray(kept[own][key]),
                    rivals,
                    -1 if percent else 1,
                    100.0 if percent else 1.0,
                    1 if percent else 3,
                )
                rows.append([title, own, words, word, *judged])
    return Table(columns, rows)


def tables() -> dict[str, Table]:
    """From what is kept, by the part of the page."""
    markets = {n: json.loads(market_file(n).read_text()) for n in MARKETS if market_file(n).is_file()}
    cells = {b: tilted.kept_runs(KEPT / "tilted", b, list(tilted.PAPER)) for b in tilted.SETUPS}
    return {
        "portfolio": portfolio_table(markets),
        "balls": ball_table(markets),
        "term": term_table(cells),
        "maml": maml_table(),
    }


if __name__ == "__main__":
    arguments = parser(__doc__)
    arguments.add_argument("markets", nargs="*", type=int, metavar="MARKET")
    given = arguments.parse_args().markets
    for count in given or ([10] if SMALL else []):
        if not market_file(count).is_file():
            market_file(count).write_text(json.dumps(run_market(count)))
    if not given:
        fill("paper-claims.md", {name: table.to_markdown() for name, table in tables().items()})
