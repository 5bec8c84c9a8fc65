"""Between chunks: a run is written down, found again, and asked to stop. No mathematics."""

import contextlib
import hashlib
import json
import time
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import jax

from nestax.checkpoints import sharded
from nestax.checkpoints.files import Checkpoint, Folder, decode, encode
from nestax.checkpoints.fingerprint import differences, fingerprint, program_difference, shortly
from nestax.devices.hosts import Hosts, gathered
from nestax.errors import ProblemError, SettingError, check_setting, warn
from nestax.loop.chunks import At, Compiled
from nestax.loop.columns import as_columns, as_rows
from nestax.loop.plan import Cost
from nestax.loop.status import Status
from nestax.trees import as_host, from_host
from nestax.version import versions

#: The version of what a checkpoint holds.
FORMAT = 5
#: The compiled program as text, to show what has changed; nothing depends on it.
PROGRAM = "program.z"
MOST_PROGRAM = 2**28
#: How the names of the tensors begin that are the weights of lanes which are not finite any more.
LEFT = "left: "
DOES_NOT_FIT = "holds a state that does not fit its own fingerprint: begin again in another folder."


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

    def at_work(self) -> contextlib.AbstractContextManager[None]:
        """Holds no folder."""
        return contextlib.nullcontext()

    def find(
        self, compiled: Compiled, begin: int, stride: int, total: int, facts: dict[str, Any]
    ) -> Saved | None:
        """Finds no run."""
        return None

    def visit(self, at: At, rows: list[dict[str, Any]], finite: Any, left: list[Any]) -> str | None:
        """Saves nothing, and stops no run."""
        return None

    def close(
        self,
        at: At,
        rows: list[dict[str, Any]],
        finite: Any,
        left: list[Any],
        status: Status,
        message: str,
    ) -> str:
        """Returns the message as it is."""
        return message

    def note(self, name: str, facts: dict[str, Any]) -> None:
        """Writes nothing down."""

    def noted(self, name: str) -> dict[str, Any] | None:
        """Finds no note."""
        return None


class Keeper:
    """Is called between chunks: saves the run if it is time, and tells whether it must stop.

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
        #: What lies on the disk: the state of this step, with this status.
        self.saved = (None, None)
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
        """How a run that others have ended goes on."""
        step = self.saved[0]
        kept = "nothing yet" if step is None else f"the state of step {step:,}"
        return f"{self.folder.path} holds {kept}, and the same call goes on from there with resume=True"

    def _hold(self) -> None:
        try:
            self.folder.path.mkdir(parents=True, exist_ok=True)
            self.folder.lock = self.folder.files.lock(self.folder.path)
        except OSError as error:
            raise self._refused(error) from None

    def _refused(self, error: OSError) -> SettingError:
        what = error.strerror or error
        return SettingError(f"cannot keep a run in {self.folder.path}: {what}; choose another folder.")

    # What was found before the run

    def note(self, name: str, facts: dict[str, Any]) -> None:
        """Writes down what was found before the run begins; an error where the folder cannot be used."""
        sealed = {"facts": facts, "sha256": _digest(facts)}
        try:
            self.folder.path.mkdir(parents=True, exist_ok=True)
            self.folder.write(self.folder.path / f"{name}.json", [json.dumps(sealed).encode()])
        except OSError as error:
            raise self._refused(error) from None

    def noted(self, name: str) -> dict[str, Any] | None:
        """What was written down; None if it is not there, or damaged."""
        try:
            told = json.loads(self.folder.files.read(self.folder.path / f"{name}.json"))
            return told["facts"] if told["sha256"] == _digest(told["facts"]) else None
        except (OSError, ValueError, KeyError, TypeError, RecursionError):
            return None

    # Finding a run again

    def find(
        self,
        compiled: Compiled,
        begin: int,
        stride: int,
        total: int,
        facts: dict[str, Any],
    ) -> Saved | None:
        """The run in the folder, if there is one and it is this one.

        Args:
            begin, stride, total: the step it began at, steps between records, the last step.
            facts: parts of its fingerprint that only the caller knows.
        """
        self.compiled = compiled
        self.fingerprint = fingerprint(compiled, total, facts)
        self.pieces = sharded.in_pieces(compiled, self.hosts)
        found = self._found()
        if self.pieces or (found is not None and found.about.get("pieces")):
            self.shared = sharded.path_for_all(self.folder.path, self.hosts)
        if found is None:
            return None
        saved = self._restore(found)
        if saved.at.step > total:
            raise SettingError(
                f"the run in {self.folder.path} has made {saved.at.step:,} steps already: ask for at "
                f"least as many; got {total:,}."
            )
        # A shorter last stride belongs to an end that is none if the run goes on.
        rows = [r for r in saved.rows if (r["step"] - begin) % stride == 0 or r["step"] == total]
        if self.folder.place.end:
            self.folder.place = self.folder.place._replace(rows=len(rows))
        self.saved = (saved.at.step, saved.status)
        return saved._replace(rows=rows)

    def _found(self) -> Checkpoint | None:
        """What lies in the folder, for every process, after the first has looked at it."""
        here: list[Checkpoint] = []

        def look() -> bool:
            found = self.folder.load()
            if found is None:
                self._write_program()
                return False
            self._compare(found.about)
            here.append(found)
            return True

        if not self.hosts.decide(look):
            return None
        if not self.hosts.many:
            return here[0]
        parts = [(found.tensors, found.about, found.records) for found in here]
        blobs = [b"".join(map(bytes, encode(t, a))) for t, a, _ in parts]
        tensors, about = decode(self.hosts.sent(b"".join(blobs)))
        blobs = [b"".join(map(bytes, encode(records, {}))) for _, _, records in parts]
        records, _ = decode(self.hosts.sent(b"".join(blobs)))
        return Checkpoint(tensors, about, records)

    def _compare(self, about: dict[str, Any]) -> None:
        """Refuses the run of another problem, method or setting, and says what differs.

        Where only versions and the text of the program differ, it goes on with a warning.
        """
        folder = self.folder.path
        then = about.get("fingerprint")
        if about.get("format") != FORMAT or not isinstance(then, dict):
            raise SettingError(f"{folder} was written by another version of nestax: use that version.")
        made = about.get("made with")
        made = made if isinstance(made, dict) else {}
        now = made_with()
        changed = [
            f"{name} {shortly(made.get(name))} → {now[name]}"
            for name in now
            if made.get(name) != now[name] and name != "device"
        ]
        told = differences(then, self.fingerprint)
        if not told and then.get("program") != self.fingerprint.parts["program"]:
            told = self._other_program(then, changed)
        if told:
            versions = f" Versions have changed: {', '.join(changed)}." if changed else ""
            raise SettingError(
                f"{folder} holds another run: {'; '.join(told)}.{versions} Repeat the call that began "
                "it, or choose another folder."
            )
        if made.get("device") != now["device"]:
            warn(
                f"{folder} was begun on {shortly(made.get('device'))} and goes on on {now['device']}: "
                "the last digits may differ from those of one run."
            )

    def _other_program(self, then: dict[str, Any], changed: list[str]) -> list[str]:
        """What is told of a program whose text alone differs.

        Nothing where versions have ``changed``, for other versions write the same program in other
        words: then there is a warning, for nobody can tell that from another program.
        """
        line = program_difference(self._program(then), self.fingerprint.program)
        if not changed:
            return [f"a function, or a number inside an optimiser or a function, has changed{line}"]
        warn(
            f"{self.folder.path} was begun with other versions ({', '.join(changed)}), which write the "
            f"program in other words{line}. All else is the same, and the run goes on: the last digits "
            "may differ from those of one run."
        )
        self._write_program()
        return []

    def _restore(self, found: Checkpoint) -> Saved:
        about = found.about
        carried = self.compiled.carried()
        lanes = self.compiled.lanes
        try:
            step = about["step"]
            status = about["status"]
            pieces = self._read_pieces(about.get("pieces"))
            arrays = {
                name: pieces[name]
                if name in pieces
                else from_host(found.tensors[name], about["kinds"].get(name, ""))
                for name in carried
            }
            finite = found.tensors["finite"]
            shapes = [] if finite.all() else self.compiled.lane.problem.shape.leaves
            names = [f"{LEFT}{k}" for k in range(len(shapes))]
            left = [from_host(found.tensors[name], about["kinds"].get(name, "")) for name in names]
            told = about["columns"].items()
            rows = as_rows({name: from_host(found.records[name], kind) for name, kind in told})
            rows = _in_order(rows)
            fits = (
                type(step) is int
                and step >= 0
                and isinstance(about["message"], str)
                and all((x.shape, str(x.dtype)) == carried[name] for name, x in arrays.items())
                and (finite.shape, finite.dtype) == (lanes, bool)
                and [((*lanes, *shape), dtype) for shape, dtype in shapes]
                == [(x.shape, x.dtype) for x in left]
                and {"step", *Cost._fields} <= set(rows[-1])
            )
            saved = Saved(
                At(self.compiled.given(arrays), step),
                rows,
                finite,
                left,
                None if status is None else Status[status],
                about["message"],
            )
            if fits and self.compiled.feed is not None:
                self.compiled.feed.go_to(step, about["stream"])
        except (ProblemError, SettingError):  # of a stream's place, or of Orbax that is missing
            raise
        except (KeyError, IndexError, TypeError, ValueError, AttributeError):
            fits = False
            saved = None
        if not fits or saved is None:
            raise SettingError(f"{self.folder.path} {DOES_NOT_FIT}")
        return saved

    def _read_pieces(self, about: dict[str, Any] | None) -> dict[str, jax.Array]:
        """What was written in pieces, on the devices of this run."""
        if about is None:
            return {}
        carried = self.compiled.carried()
        places = dict(zip(carried, self.compiled.shardings or (), strict=False))
        one = jax.sharding.SingleDeviceSharding(jax.local_devices()[0])
        structs = [
            jax.ShapeDtypeStruct(*carried[name], sharding=places.get(name, one))
            for name in about["names"]
        ]
        path = self.shared / about["folder"]
        return dict(zip(about["names"], sharded.load(path, structs), strict=True))

    # Between chunks

    def visit(self, at: At, rows: list[dict[str, Any]], finite: Any, left: list[Any]) -> str | None:
        """Saves if it is time; a sentence if the run must stop here."""
        if not self.hosts.decide(lambda: time.perf_counter() - self.began >= self.every):
            return None
        trouble = self._save(at, rows, finite, left, None, "")
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
        """The last checkpoint of this call; returns the message, and what went wrong while saving."""
        if self.failed or self.saved == (at.step, status):
            return message
        trouble = self._save(at, rows, finite, left, status, message)
        if trouble is None:
            return message
        if self.hosts.first:
            warn(trouble)
        return f"{message} {trouble}"

    def _save(
        self,
        at: At,
        rows: list[dict[str, Any]],
        finite: Any,
        left: list[Any],
        status: Status | None,
        message: str,
    ) -> str | None:
        """Writes everything down; a sentence if that was not possible."""
        feed = self.compiled.feed
        taken = self.compiled.taken(at.carry)
        whole = {name: x for name, x in taken.items() if name not in self.pieces}
        whole["key"] = self.compiled.run.key
        whole |= {f"{LEFT}{k}": x for k, x in enumerate(left)}
        host = {name: as_host(x) for name, x in gathered(whole).items()}
        columns = {name: as_host(column) for name, column in as_columns(rows[-1:]).items()}
        about = {
            "format": FORMAT,
            "step": at.step,
            "status": status and status.name,
            "message": message,
            "kinds": {name: kind for name, (_, kind) in host.items() if kind},
            "columns": {name: kind for name, (_, kind) in columns.items()},
            "stream": feed and feed.place(at.step),
            "fingerprint": self.fingerprint.parts,
            "made with": made_with(),
        }
        tensors = {name: x for name, (x, _) in host.items()} | {"finite": finite}

        def write() -> str | None:
            try:
                self.folder.look()
                new = as_columns(rows[self.folder.place.rows :])
                self.folder.save(tensors, about, {name: as_host(x)[0] for name, x in new.items()})
            except OSError as error:
                return self._not_written(error)
            self.saved = (at.step, status)  # it is, whatever becomes of the other processes
            return None

        trouble = None
        if self.pieces:
            trouble, about["pieces"] = self._write_pieces([taken[name] for name in self.pieces])
        trouble = trouble or self.hosts.decide(write)
        self.failed = self.failed or trouble is not None
        if trouble is None:
            self.saved = (at.step, status)
        return trouble

    def _write_pieces(self, arrays: list[Any]) -> tuple[str | None, dict[str, Any]]:
        """Writes what no process holds whole, all of them together; what the checkpoint says of it."""

        def look() -> int | str:
            try:
                self.folder.look()
            except OSError as error:
                return self._not_written(error)
            return self.folder.place.number + 1

        number = self.hosts.decide(look)
        if isinstance(number, str):
            return number, {}
        name = sharded.name_of(number)
        try:
            files = sharded.save(self.shared / name, arrays, self.hosts)
        except OSError as error:
            if self.hosts.many:  # others may be waiting for this one, and learn of it by its end
                raise RuntimeError(self._not_written(error)) from error
            return self._not_written(error), {}
        return None, {"folder": name, "names": self.pieces, "files": files}

    def _not_written(self, error: OSError) -> str:
        last = self.saved[0]
        before = "" if last is None else f"; the last good one is of step {last:,}"
        what = error.strerror or str(error)
        return f"Its checkpoint in {self.folder.path} could not be written: {what}{before}."

    # The text of the program

    def _write_program(self) -> None:
        packed = zlib.compress(self.fingerprint.program.encode())
        try:
            self.folder.write(self.folder.path / PROGRAM, [packed])
        except OSError as error:
            raise self._refused(error) from None

    def _program(self, then: dict[str, Any]) -> str | None:
        """The text of the program that the fingerprint ``then`` belongs to, if it is still there."""
        try:
            packed = self.folder.files.read(self.folder.path / PROGRAM)
            text = zlib.decompressobj().decompress(packed, MOST_PROGRAM)
        except (OSError, zlib.error):
            return None
        same = hashlib.sha256(text).hexdigest() == then.get("program")
        return text.decode() if same else None


def _digest(facts: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()


def _in_order(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Every record once, up to the last: what is left of damaged records may hold some twice."""
    last = rows[-1]
    once = {row["step"]: row for row in rows}
    return [once[step] for step in sorted(once) if step <= last["step"]]


def made_with() -> dict[str, str]:
    """Versions of what computes, and the device."""
    return versions() | {"device": jax.default_backend()}
