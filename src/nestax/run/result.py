"""What a run returns: weights, records, an honest status, and everything needed to go on."""

import dataclasses
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PyTree

from nestax.checkpoints import files
from nestax.errors import ProblemError
from nestax.loop.plan import Cost
from nestax.loop.status import Status
from nestax.run.verdict import Verdict, Word, judge
from nestax.table import Table, as_html, number, pandas


@dataclasses.dataclass(frozen=True)
class Continuation:
    """A run that can go on: ``minimize(..., start=carry)`` continues without a draw at the start.

    lane: the loop's own carry; a list of its leaves if it was read from a file.
    rows: the next row of every stream.
    """

    lane: Any
    key: Any
    step: int
    cost: Cost
    rows: tuple[int, ...] = ()


@dataclasses.dataclass(frozen=True)
class Result:
    """Result of ``minimize``.

    w: the weights asked for, in the structure of w0.
    records: NumPy columns; row 0 is the start. Columns per level have a second axis.
    status, message: how the run ended, as an enumeration and as a sentence.
    carry: everything needed to continue.
    levels: the names of the levels.
    micro_batch: how many draws were evaluated at once, of the levels whose batches were cut.
    """

    w: PyTree
    records: dict[str, np.ndarray]
    status: Status
    message: str
    carry: Continuation
    levels: tuple[str, ...] = ()
    micro_batch: dict[str, int] = dataclasses.field(default_factory=dict)

    @property
    def diagnosis(self) -> str:
        """Whether memory paid, a sentence a level: believed errors against those of plain batches."""
        return "\n".join(diagnose(self.records, self.levels))

    @property
    def verdict(self) -> Verdict:
        """How far the run may be trusted, in a word and a sentence with its numbers."""
        return judge(self.records, self.status, self.message)

    def __repr__(self) -> str:
        last = {k: v[-1] for k, v in self.records.items() if v.ndim == 1}
        words = ", ".join(f"{k}={number(v.item())}" for k, v in last.items())
        notes = [] if self.status is Status.SUCCESS else [self.message]
        notes += [] if self.verdict.word is Word.DIVERGED else [str(self.verdict)]
        return "\n".join([f"Result({self.status.name}: {words})", *notes])

    def _repr_html_(self) -> str:
        """For notebooks: how it ended, and every column at the start and at the end."""
        rows = [
            [name, *(number(column[k].item()) for k in (0, -1))]
            for name, column in self.records.items()
            if column.ndim == 1
        ]
        table = Table(["", "at the start", "at the end"], rows)
        return as_html(f"{self.status.name}: {self.message}", table, str(self.verdict))

    def to_frame(self) -> Any:
        """The records as a pandas frame; columns per level become ``name[0]``, ``name[1]``, …

        Its ``attrs`` tell how the run ended.
        """
        frame = pandas().DataFrame(flat_columns(self.records))
        frame.attrs |= {"status": self.status.name, "message": self.message}
        frame.attrs["verdict"] = str(self.verdict)
        return frame

    def plot(self, path: str | Path | None = None) -> Any:
        """Value and gradient norm against samples; returns the figure, saves it if given a path."""
        from nestax.figures import plot_run

        return plot_run(self.records, path)

    def save(self, path: str | Path) -> None:
        """Writes weights, records, status and carry to one file, whole or not at all, without pickle."""
        groups = {
            "w": _numbered(self.w),
            "records": self.records,
            "carry": _numbered(self.carry.lane),
            "run": {"key": self.carry.key},
        }
        facts = {
            "status": self.status.name,
            "message": self.message,
            "step": self.carry.step,
            "cost": self.carry.cost,
            "rows": self.carry.rows,
            "levels": self.levels,
            "micro_batch": self.micro_batch,
            "tree": _tree_as_json(jax.tree.map(lambda _: "leaf", self.w)),
        }
        files.save(Path(path), groups, facts)


def load(path: str | Path, like: PyTree = None) -> Result:
    """Reads a result that ``Result.save`` wrote.

    Args:
        path: the file.
        like: a tree of the structure of w; needed only if w is made of classes of its own.
    """
    damaged = ProblemError(f"{path} is not a result that nestax wrote, or it is damaged.")
    try:
        groups, facts = files.load(Path(path))
        known = like is not None or facts["tree"] is not None
    except FileNotFoundError:
        raise ProblemError(f"there is no file {path}.") from None
    except files.OtherFormatError:
        raise ProblemError(files.OTHER_VERSION.format(path)) from None
    except (files.DamagedError, OSError, KeyError):
        raise damaged from None
    if not known:
        raise ProblemError("w is made of classes of its own: pass load(path, like=problem.w0).")
    try:
        return _result(groups, facts, like)
    except files.MADE_UP:
        raise damaged from None


def _result(groups: files.Groups, facts: dict[str, Any], like: PyTree) -> Result:
    """Puts together what ``Result.save`` has taken apart."""
    template = _tree_from_json(facts["tree"]) if like is None else like
    records = dict(groups["records"])
    cost, rows, step, message = (facts[name] for name in ("cost", "rows", "step", "message"))
    whole = all(type(number) is int and number >= 0 for number in (step, *cost, *rows))
    if not whole or not isinstance(message, str) or not all(len(c) for c in records.values()):
        raise ValueError
    w, carry = ([*map(jnp.asarray, groups.get(name, {}).values())] for name in ("w", "carry"))
    return Result(
        jax.tree.structure(template).unflatten(w),
        records,
        Status[facts["status"]],
        message,
        Continuation(carry, groups["run"]["key"], step, Cost(*cost), tuple(rows)),
        tuple(map(str, facts["levels"])),
        {str(name): int(most) for name, most in facts["micro_batch"].items()},
    )


def _numbered(tree: PyTree) -> dict[str, Any]:
    return {str(k): x for k, x in enumerate(jax.tree.leaves(tree))}


#: Memory that brings an error down by less than this factor has not paid.
LEAST_GAIN = 1.1


def diagnose(records: dict[str, np.ndarray], levels: tuple[str, ...]) -> list[str]:
    """One sentence a level, from the error bars of the second half of a run."""
    if "believed_error" not in records:
        return [
            "This method keeps no error bars: run nx.SelfTuning(), whose records have them, or record "
            "value_error where the population is finite."
        ]
    late = slice(len(records["step"]) // 2, None)
    kinds = {
        "value": ("believed_error", "plain_error"),
        "derivative": ("believed_jac_error", "plain_jac_error"),
    }
    out = []
    for i, name in enumerate(levels):
        if np.isnan(records["believed_error"][-1, i]):
            out.append(_nothing_differed(name, int(records["step"][-1]) + 1))
            continue
        bars = {
            what: tuple(_median(records[column][late, i]) for column in columns)
            for what, columns in kinds.items()
        }
        bars = {what: pair for what, pair in bars.items() if np.isfinite(pair).all() and pair[1] > 0}
        if not bars:
            out.append(f"level {name!r}: exact, so there is nothing to remember.")
            continue
        paid = any(own * LEAST_GAIN < plain for own, plain in bars.values())
        words = [f"its {what} by {own:.2g} ({plain:.2g})" for what, (own, plain) in bars.items()]
        out.append(
            f"level {name!r}: memory {'paid' if paid else 'did not pay'}. Believed to be off (in "
            f"brackets a plain batch of the same size): {', '.join(words)}."
        )
    return out


def _median(column: np.ndarray) -> float:
    """Of the known entries: while no two draws have differed an error bar is NaN."""
    known = column[np.isfinite(column)]
    return float(np.median(known)) if known.size else np.nan


def _nothing_differed(name: str, batches: int) -> str:
    """What is known of an event that was in none of so many batches: the rule of three."""
    most = min(1.0, 3 / batches)
    return (
        f"level {name!r}: in {batches:,} batches no two draws of its value differed, so its error is "
        f"not known: at 95 % confidence an event in up to {100 * most:.3g} % of the batches may "
        "be missing."
    )


def flat_columns(records: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Records with one column per level instead of one with a second axis."""
    out = {}
    for name, column in records.items():
        if column.ndim == 1:
            out[name] = column
        else:
            out |= {f"{name}[{i}]": column[:, i] for i in range(column.shape[1])}
    return out


def _tree_as_json(tree: Any) -> Any:
    """Nested dictionaries, lists and tuples as JSON; None if the tree holds anything else."""
    if tree == "leaf":
        return "leaf"
    if type(tree) in (list, tuple):
        parts = [_tree_as_json(x) for x in tree]
        return None if None in parts else {type(tree).__name__: parts}
    if type(tree) is dict and all(isinstance(k, str) for k in tree):
        parts = {k: _tree_as_json(v) for k, v in tree.items()}
        return None if None in parts.values() else {"dict": parts}
    return None


def _tree_from_json(tree: Any) -> Any:
    if tree == "leaf":
        return 0
    ((kind, parts),) = tree.items()
    if kind == "dict":
        return {k: _tree_from_json(v) for k, v in parts.items()}
    return (list if kind == "list" else tuple)(map(_tree_from_json, parts))
