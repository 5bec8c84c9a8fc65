"""What several processes must do alike is decided by the first of them, and told to the others.

Chunks whose length comes from a clock, free memory, signals, callbacks and files differ from process to
process, and computations that wait for each other hang if they do. Without a mesh, or with all of it in
one process, every function here does nothing.
"""

import atexit
import ctypes
import functools
import hashlib
import json
import os
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PyTree

from nestax.errors import SettingError

#: Bytes of a message that need no second one.
SHORT = 1024
#: What JAX says where another process is gone.
GONE = re.compile("gloo|nccl|connection|unavailable|heartbeat|deadline|aborted|socket", re.IGNORECASE)


class ProcessLostError(RuntimeError):
    """Another process of the run has ended, so that this one cannot go on."""


class Hosts:
    """The processes that make one run together.

    many: whether there are several.
    first: whether this is the one that decides, and that reads and writes files.
    """

    def __init__(self, mesh: Any = None):
        self.many = mesh is not None and jax.process_count() > 1
        self.first = not self.many or jax.process_index() == 0
        if self.many:
            _leave_at_once_after_an_error()

    def told(self, numbers: Any) -> np.ndarray:
        """The numbers of every process, along a leading axis. All processes call it together."""
        own = np.atleast_1d(np.asarray(numbers))
        if not self.many:
            return own[None]
        from jax.experimental.multihost_utils import process_allgather

        with self.together():  # also before a run begins
            # As bytes, for JAX may know of 32 bits only.
            every = np.asarray(process_allgather(own.view(np.uint8)))
        return np.ascontiguousarray(every).view(own.dtype)

    def least(self, number: float) -> float:
        """The least of the numbers of all processes."""
        return float(self.told(np.asarray(number, np.float64)).min()) if self.many else number

    def any(self, flag: bool) -> bool:
        """Whether it is so for any process."""
        return bool(self.told(np.asarray(flag, np.uint8)).any()) if self.many else flag

    def decide(self, make: Callable[[], Any]) -> Any:
        """What ``make`` returns in the first process, as JSON knows it; an error there is one here."""
        if not self.many:
            return make()
        own = None
        message: dict[str, Any] = {}
        if self.first:
            try:
                message["value"] = make()
            except Exception as error:
                own = error
                message["error"] = str(error)
        message = json.loads(self.sent(json.dumps(message).encode()))
        if own is not None:
            raise own
        if "error" in message:
            raise SettingError(message["error"])
        return message["value"]

    def sent(self, message: bytes) -> bytes:
        """The message of the first process."""
        if not self.many:
            return message
        size = len(message).to_bytes(8, "little")
        short = np.frombuffer((size + message[:SHORT]).ljust(SHORT + 8, b"\0"), np.uint8)
        begin = self.told(short)[0].tobytes()
        size = int.from_bytes(begin[:8], "little")
        if size <= SHORT:
            return begin[8 : 8 + size]
        whole = 1 << size.bit_length()  # few lengths, for each is a program
        message = message if self.first else b""
        return self.told(np.frombuffer(message.ljust(whole, b"\0"), np.uint8))[0].tobytes()[:size]

    def all_sent(self, thing: Any) -> list[Any]:
        """What every process sends, as JSON knows it."""
        if not self.many:
            return [thing]
        message = json.dumps(thing).encode()
        sizes = self.told(np.asarray(len(message), np.int64))[:, 0]
        whole = 1 << int(sizes.max()).bit_length()  # few lengths, for each is a program
        each = self.told(np.frombuffer(message.ljust(whole, b"\0"), np.uint8))
        return [json.loads(x[:n].tobytes()) for x, n in zip(each, sizes, strict=True)]

    def agree(self, what: str, digest: bytes) -> None:
        """Refuses processes that were given different things."""
        if not self.many:
            return
        each = self.told(np.frombuffer(digest[:8], np.uint64))[:, 0]
        other = np.flatnonzero(each != each[0])
        if other.size:
            raise SettingError(
                f"process {other[0]} has other {what} than process 0: give all processes the same, made "
                "from the same files and seeds."
            )

    @contextmanager
    def together(self, where: Callable[[], str] = lambda: "") -> Iterator[None]:
        """What JAX says of a process that is gone becomes one sentence."""
        try:
            yield
        except Exception as error:
            lost = isinstance(error, ProcessLostError) or GONE.search(str(error))
            # An OSError is of a file or a connection of the user's: JAX raises none.
            if not self.many or isinstance(error, SettingError | OSError) or not lost:
                raise
            _leave_the_others()
            ended = "another process of this run has ended, and this one ends with it"
            raise ProcessLostError(": ".join(filter(None, [ended, where()])) + ".") from error


def digest_of(tree: PyTree, facts: Any = ()) -> bytes:
    """SHA-256 of the arrays that a process holds whole, and of some facts."""
    digest = hashlib.sha256(repr(facts).encode())
    for x in jax.tree.leaves(tree):
        if isinstance(x, jax.Array) and jnp.issubdtype(x.dtype, jax.dtypes.prng_key):
            x = jax.random.key_data(x)
        if isinstance(x, np.ndarray) or (isinstance(x, jax.Array) and x.is_fully_addressable):
            digest.update(f"{x.shape} {x.dtype}".encode())
            digest.update(np.ascontiguousarray(x).data)
    return digest.digest()


def gathered(tree: PyTree) -> PyTree:
    """Arrays that can be read here. All processes call it together if any lies in several of them."""
    return jax.tree.map(_gathered, tree)


def _gathered(x: Any) -> Any:
    if not isinstance(x, jax.Array) or x.is_fully_addressable or x.is_fully_replicated:
        return x
    if jnp.issubdtype(x.dtype, jax.dtypes.prng_key):
        words = _gathered(jax.random.key_data(x))
        return jax.random.wrap_key_data(jnp.asarray(words), impl=jax.random.key_impl(x))
    from jax.experimental.multihost_utils import process_allgather

    return process_allgather(x, tiled=True)


def _leave_the_others() -> None:
    """Has this process end by itself, with its own exit code.

    At its end JAX would wait for the process that is gone until its heartbeat is missed, and then abort.
    """
    from jax._src import distributed  # nothing public leaves without waiting

    state = distributed.global_state
    for name in ("preemption_sync_manager", "client", "service"):
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(getattr(state, name)))  # one that is freed waits too
        setattr(state, name, None)


@functools.cache
def _leave_at_once_after_an_error() -> None:
    """JAX ends a process when all are at their end, and waits minutes for those that never come."""

    def leave() -> None:
        if getattr(sys, "last_value", None) is None:
            return
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(1)

    atexit.register(leave)
