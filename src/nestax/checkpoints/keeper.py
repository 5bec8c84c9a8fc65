"""Between chunks: a run is written down, found again, and asked to stop. No mathematics."""

import contextlib
import hashlib
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

from nestax.checkpoints import sharded
from nestax.checkpoints.files import MADE_UP, OTHER_VERSION, Contents, pack, unpack
from nestax.checkpoints.fingerprint import differences, fingerprint, program_difference, shortly
from nestax.checkpoints.folder import Folder
from nestax.devices.hosts import Hosts, gathered
from nestax.errors import ProblemError, SettingError, check_setting, warn
from nestax.loop.chunks import At, Compiled
from nestax.loop.columns import as_columns, as_rows
from nestax.loop.plan import Cost
from nestax.loop.status import Status
from nestax.version import versions

#: The version of what a checkpoint holds; no other is gone on with.
FORMAT = 6
#: The note with the text of the compiled program, to show what has changed; nothing depends on it.
PROGRAM = "program"


class Saved(NamedTuple):
    """A run as it was found.

    rows: its records.
    finite: of every lane, whether all of them are.
    left: the last finite weights of lanes that are not, an array a leaf; empty if all are.
    status, message: how it ended; the status is None if it had not.
    """

    at: At
    rows: list[dict[str, Any]]
    finite: Any
    left: list[Any]
    status: Status | None
    message: str


class NoKeeper:
    """Keeps nothing: the twin of ``Keeper`` for a run without a folder."""

    where = ""
    at_work = contextlib.nullcontext

    def find(self, *_: Any) -> None:
        """Finds no run."""

    def visit(self, *_: Any) -> None:
        """Saves nothing, and stops no run."""

    def close(self, *state: Any) -> str:
        """Returns the message as it is."""
        return state[-1]

    def note(self, name: str, facts: dict[str, Any]) -> None:
        """Writes nothing down."""

    def noted(self, name: str) -> None:
        """Finds no note."""


class Keeper:
    """Keeps a run in a folder: saves it between chunks if it is time, and finds it again.

    Args:
        checkpoint: the folder of the run.
        every: seconds between checkpoints.
        resume: go on with the run in the folder, if there is one.
        hosts: the processes of the run, of which the first alone reads and writes.
    """

    def __init__(self, checkpoint: str | Path, every: float, resume: bool, hosts: Hosts | None = None):
        check_setting("every", every, "at least 0 seconds", lambda s: s >= 0)
        self.every = every
        self.failed = False
        self.folder = Folder(checkpoint)
        self.columns: dict[str, np.ndarray] = {}
        #: What lies on the disk: the state of this step, with this status.
        self.saved: tuple[int | None, Status | None] = (None, None)
        self.hosts = hosts or Hosts()
        if self.hosts.decide(lambda: bool(self.folder.checkpoints())) and not resume:
            raise SettingError(
                f"{checkpoint} holds a run already: go on with it by nx.Checkpoint(folder, "
                "resume=True), or choose another folder."
            )

    @contextlib.contextmanager
    def at_work(self) -> Iterator[None]:
        """Holds the folder."""
        self.hosts.decide(self._hold)
        try:
            self.began = time.perf_counter()
            yield
        finally:
            if self.folder.lock is not None:
                self.folder.files.unlock(self.folder.lock)
                self.folder.lock = None

    @property
    def where(self) -> str:
        """Says how a run that others have ended goes on."""
        step = self.saved[0]
        kept = "nothing yet" if step is None else f"the state of step {step:,}"
        return f"{self.folder.path} holds {kept}, and the same call goes on from there with resume=True"

    def _hold(self) -> None:
        with self._refusing():
            self.folder.path.mkdir(parents=True, exist_ok=True)
            self.folder.lock = self.folder.files.lock(self.folder.path)

    @contextlib.contextmanager
    def _refusing(self) -> Iterator[None]:
        """Refuses a folder that cannot be used, before the run begins."""
        try:
            yield
        except OSError as error:
            what = error.strerror or error
            raise SettingError(
                f"cannot keep a run in {self.folder.path}: {what}; choose another folder."
            ) from None

    # What was found before the run

    def note(self, name: str, facts: dict[str, Any]) -> None:
        """Writes down what was found before the run begins."""
        with self._refusing():
            self.folder.path.mkdir(parents=True, exist_ok=True)
            self.folder.note(name, facts)

    def noted(self, name: str) -> dict[str, Any] | None:
        """Reads what was written down; None if it is not there, or damaged."""
        return self.folder.noted(name)

    # Finding a run again

    def find(
        self, compiled: Compiled, begin: int, stride: int, total: int, facts: dict[str, Any]
    ) -> Saved | None:
        """Finds the run in the folder, if there is one and it is this one.

        Args:
            begin, stride, total: the step it began at, steps between records, the last step.
            facts: parts of its fingerprint that only the caller knows.
        """
        self.compiled = compiled
        self.fingerprint = fingerprint(compiled, total, facts)
        self.pieces = sharded.in_pieces(compiled, self.hosts)
        try:
            contents = self._load()
            if self.pieces or (contents is not None and contents.facts.get("pieces")):
                self.shared = sharded.path_for_all(self.folder.path, self.hosts)
            if contents is None:
                return None
            saved = self._restore(contents, begin, stride, total)
        except (ProblemError, SettingError):  # says what is wrong already
            raise
        except MADE_UP:
            raise SettingError(
                f"{self.folder.path} holds a state that does not fit its own fingerprint: begin again "
                "in another folder."
            ) from None
        if saved.at.step > total:
            raise SettingError(
                f"the run in {self.folder.path} has made {saved.at.step:,} steps already: ask for at "
                f"least as many; got {total:,}."
            )
        self.saved = (saved.at.step, saved.status)
        return saved

    def _load(self) -> Contents | None:
        """Returns what lies in the folder to every process, after the first has looked at it."""
        contents: list[Contents] = []

        def look() -> int:
            newest = self.folder.load()
            if newest is None:
                self.note(PROGRAM, {"text": self.fingerprint.program})
            else:
                self._compare(newest.facts)
                contents.append(newest)
            return self.folder.number

        self.folder.number = self.hosts.decide(look)
        if not self.folder.number:
            return None
        if not self.hosts.many:
            return contents[0]
        return unpack(self.hosts.sent(pack(*contents[0]) if contents else b""))

    def _compare(self, facts: dict[str, Any]) -> None:
        """Refuses the run of another problem, method or setting, and says what differs.

        Where only versions and the text of the program differ, it goes on with a warning.
        """
        folder = self.folder.path
        if facts.get("format") != FORMAT:
            raise SettingError(OTHER_VERSION.format(folder))
        then = {**facts["fingerprint"]}
        made = {**facts["made with"]}
        now = made_with()
        changed = [
            f"{name} {shortly(made.get(name))} → {now[name]}"
            for name in now
            if made.get(name) != now[name] and name != "device"
        ]
        reasons = differences(then, self.fingerprint)
        if not reasons and then.get("program") != self.fingerprint.parts["program"]:
            reasons = self._other_program(then, changed)
        if reasons:
            versions = f" Versions have changed: {', '.join(changed)}." if changed else ""
            raise SettingError(
                f"{folder} holds another run: {'; '.join(reasons)}.{versions} Repeat the call that "
                "began it, or choose another folder."
            )
        if made.get("device") != now["device"]:
            warn(
                f"{folder} was begun on {shortly(made.get('device'))} and goes on on {now['device']}: "
                "the last digits may differ from those of one run."
            )

    def _other_program(self, then: dict[str, Any], changed: list[str]) -> list[str]:
        """Tells what has changed where the text of the program alone differs.

        Nothing where versions have ``changed``, for other versions write the same program in other
        words: then there is a warning, for nobody can tell that from another program.
        """
        line = program_difference(self._noted_program(then), self.fingerprint.program)
        if not changed:
            return [f"a function, or a number inside an optimiser or a function, has changed{line}"]
        warn(
            f"{self.folder.path} was begun with other versions ({', '.join(changed)}), which write the "
            f"program in other words{line}. All else is the same, and the run goes on: the last digits "
            "may differ from those of one run."
        )
        self.note(PROGRAM, {"text": self.fingerprint.program})
        return []

    def _noted_program(self, then: dict[str, Any]) -> str | None:
        """Reads the program of the fingerprint ``then``, if it is still there."""
        text = str((self.noted(PROGRAM) or {}).get("text"))
        return text if hashlib.sha256(text.encode()).hexdigest() == then.get("program") else None

    def _restore(self, contents: Contents, begin: int, stride: int, total: int) -> Saved:
        """Returns the run that a file holds; raises one of ``MADE_UP`` where its parts do not fit."""
        compiled = self.compiled
        groups, facts = contents
        step = facts["step"]
        status = facts["status"]
        carry = groups.get("carry", {}) | self._load_pieces(facts.get("pieces"))
        finite = groups["lanes"]["finite"]
        left = list(groups.get("left", {}).values())
        # A shorter last stride belongs to an end that is none if the run goes on.
        steps = groups["records"]["step"]
        kept = ((steps - begin) % stride == 0) | (steps == total)
        self.columns = {name: column[kept] for name, column in groups["records"].items()}
        rows = as_rows(self.columns)
        kinds = compiled.carried().items()
        shapes = [] if finite.all() else compiled.lane.problem.shape.leaves
        lost = [((*compiled.lanes, *shape), dtype) for shape, dtype in shapes]
        fits = (
            type(step) is int
            and step >= 0
            and isinstance(facts["message"], str)
            and all((carry[name].shape, str(carry[name].dtype)) == kind for name, kind in kinds)
            and (finite.shape, finite.dtype) == (compiled.lanes, bool)
            and lost == [(x.shape, x.dtype) for x in left]
            and {"step", *Cost._fields} <= set(rows[-1])
        )
        if not fits:
            raise ValueError
        compiled.feed.go_to(step, facts["stream"])
        at = At(compiled.given(carry), step)
        return Saved(at, rows, finite, left, status and Status[status], facts["message"])

    def _load_pieces(self, pieces: dict[str, Any] | None) -> dict[str, jax.Array]:
        """Reads what was written in pieces, onto the devices of this run."""
        if pieces is None:
            return {}
        carried = self.compiled.carried()
        shardings = dict(zip(carried, self.compiled.shardings or (), strict=False))
        single = jax.sharding.SingleDeviceSharding(jax.local_devices()[0])
        structs = {
            name: jax.ShapeDtypeStruct(*carried[name], sharding=shardings.get(name, single))
            for name in pieces["names"]
        }
        return sharded.load(self.shared / sharded.name_of(self.folder.number), structs)

    # Between chunks

    def visit(self, at: At, rows: list[dict[str, Any]], finite: Any, left: list[Any]) -> str | None:
        """Saves if it is time; returns a sentence if the run must stop here."""
        if not self.hosts.decide(lambda: time.perf_counter() - self.began >= self.every):
            return None
        trouble = self._save(Saved(at, rows, finite, left, None, ""))
        self.began = time.perf_counter()
        return trouble and f"The run was stopped. {trouble}"

    def close(
        self,
        at: At,
        rows: list[dict[str, Any]],
        finite: Any,
        left: list[Any],
        status: Status,
        message: str,
    ) -> str:
        """Writes the last checkpoint of this call; returns the message, and what went wrong."""
        if self.failed or self.saved == (at.step, status):
            return message
        trouble = self._save(Saved(at, rows, finite, left, status, message))
        if trouble and self.hosts.first:
            warn(trouble)
        return f"{message} {trouble}" if trouble else message

    def _save(self, run: Saved) -> str | None:
        """Writes everything down; returns a sentence if that was not possible."""
        step = run.at.step
        carry = self.compiled.taken(run.at.carry)
        pieces = {name: carry.pop(name) for name in self.pieces}
        groups = {
            "carry": gathered(carry),
            "lanes": {"finite": np.asarray(run.finite)},
            "left": {str(k): x for k, x in enumerate(run.left)},
            "records": self._as_columns(run.rows),
        }
        facts = {
            "format": FORMAT,
            "step": step,
            "status": run.status and run.status.name,
            "message": run.message,
            "stream": self.compiled.feed.position(step),
            "fingerprint": self.fingerprint.parts,
            "made with": made_with(),
        }
        number = self.folder.number + 1
        trouble = self.hosts.decide(lambda: self._tried(self.folder.look))
        if pieces and trouble is None:  # before the checkpoint, without which they count for nothing
            path = self.shared / sharded.name_of(number)
            trouble = self._tried(lambda: facts.update(pieces=sharded.save(path, pieces, self.hosts)))
            if trouble and self.hosts.many:  # others may wait for this one, and learn of it by its end
                raise RuntimeError(trouble)

        def write() -> None:
            self.folder.save(groups, facts)
            self.saved = (step, run.status)  # it is, whatever becomes of the other processes

        trouble = trouble or self.hosts.decide(lambda: self._tried(write))
        self.failed = trouble is not None
        if trouble is None:
            self.saved = (step, run.status)
            self.folder.number = number
        return trouble

    def _as_columns(self, rows: list[dict[str, Any]]) -> dict[str, np.ndarray]:
        """Puts records together, and looks at the new ones only, for there may be many."""
        before = self.columns
        new = as_columns(rows[len(before.get("step", ())) :])
        joined = {name: np.concatenate([before[name], x]) for name, x in new.items()} if before else new
        self.columns = joined or before
        return self.columns

    def _tried(self, write: Callable[[], Any]) -> str | None:
        """Calls a function that writes; returns a sentence if the disk refuses."""
        try:
            write()
        except OSError as error:
            last = self.saved[0]
            before = "" if last is None else f"; the last good one is of step {last:,}"
            what = error.strerror or str(error)
            return f"Its checkpoint in {self.folder.path} could not be written: {what}{before}."
        return None


def made_with() -> dict[str, str]:
    """Returns the versions of what computes, and the device."""
    return versions() | {"device": jax.default_backend()}
