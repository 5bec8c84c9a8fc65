"""Rows that several processes read together: which of them each one reads, and how all get all of them.

Of arrays and files, which every process can read whole, each reads some rows in a row of a portion. An
iterator is one for every process, over its own rows: row r of the stream is row r div P of process
r mod P, so that ``dataset[process::processes]`` gives the rows of ``dataset`` in their order. Either way
the rows of a stream do not depend on the number of processes. No mathematics.
"""

import hashlib
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec
from jaxtyping import PyTree

from nestax.devices.hosts import Hosts
from nestax.devices.mesh import at_place
from nestax.devices.rows import Sharded
from nestax.errors import warn
from nestax.programs import kept
from nestax.streams.readers import Read, Reader
from nestax.streams.stream import Stream


class Share(NamedTuple):
    """The rows of a stream that one of several processes reads.

    own: whether it has rows of its own, of which it reads all.
    """

    number: int
    processes: int
    own: bool

    def rows(self, first: int, count: int) -> tuple[int, int]:
        """Returns which of the rows from ``first`` on it reads: the first, by its own numbers, and how
        many."""
        if self.own:
            behind = (self.number - first) % self.processes
            return (first + behind) // self.processes, max(0, -(-(count - behind) // self.processes))
        each = self.most(count)
        begin = min(self.number * each, count)
        return first + begin, min(each, count - begin)

    def offset(self, first: int, count: int, k: int) -> int:
        """Finds the k-th row that it reads among all of them."""
        if self.own:
            return (self.number - first) % self.processes + k * self.processes
        return self.number * self.most(count) + k

    def most(self, count: int) -> int:
        """Returns the most rows that a process reads of so many."""
        return -(-count // self.processes)

    def indices(self, first: int, count: int, held: int) -> np.ndarray:
        """Finds every row among those of all processes, joined, with room for ``held`` each."""
        row = np.arange(count)
        if self.own:
            return (first + row) % self.processes * held + row // self.processes
        each = max(self.most(count), 1)
        return row // each * held + row % each


class Shared(Reader):
    """Of several processes each reads its share of the rows of a reader, and all get all of them."""

    def __init__(self, reader: Reader, sharded: Sharded, hosts: Hosts):
        self.reader = reader
        self.one, self.size, self.about, self.own = reader.one, reader.size, reader.about, reader.own
        self.hosts = hosts
        self.share = Share(jax.process_index(), jax.process_count(), reader.own)
        firsts: dict[int, Any] = {}
        for device in sharded.mesh.devices.flat:
            firsts.setdefault(device.process_index, device)
        line = np.asarray([firsts[k] for k in sorted(firsts)])
        self.mesh = Mesh(line, ("process",), axis_types=(AxisType.Auto,))
        self.everywhere = sharded.everywhere
        self.here = sharded.mesh.local_devices

    def read(self, start: int, count: int, into: PyTree = None) -> Read:
        return self.reader.read(*self.share.rows(start, count), into)

    def most(self, count: int) -> int:
        return self.share.most(count)

    def agreed(self, start: int, count: int, many: int, why: str | None) -> tuple[int, str]:
        lacks = many < self.share.rows(start, count)[1]
        whole = self.share.offset(start, count, many) if lacks else count
        offsets = self.hosts.told(np.asarray(whole))[:, 0]
        if offsets.min() == count:
            return count, ""
        process = int(offsets.argmin())
        return int(offsets.min()), f" in process {process}: {self.hosts.all_sent(why)[process]}"

    def handed(self, rows: PyTree, start: int, count: int, most: int) -> PyTree:
        index = np.zeros(most, np.int32)
        index[:count] = self.share.indices(start, count, len(jax.tree.leaves(rows)[0]))
        split = NamedSharding(self.mesh, PartitionSpec("process"))
        parts = jax.tree.map(lambda x: jax.make_array_from_process_local_data(split, x), rows)
        index = at_place(index, NamedSharding(self.mesh, PartitionSpec()))
        return jax.tree.map(self._everywhere, jax.block_until_ready(_joined(self.mesh)(parts, index)))

    def on_devices(self, x: Any) -> jax.Array:
        return at_place(np.asarray(x, np.int32), self.everywhere)

    def _everywhere(self, x: jax.Array) -> jax.Array:
        """Copies what lies on one device of every process to all of them."""
        here = x.addressable_shards[0].data
        copies = [jax.device_put(here, device) for device in self.here]
        return jax.make_array_from_single_device_arrays(x.shape, self.everywhere, copies)

    def position(self, row: int) -> dict[str, Any]:
        if not self.own:
            return self.reader.position(row)
        return {
            "row": row,
            "each": self.hosts.all_sent(self.reader.position(self.share.rows(row, 0)[0])),
        }

    def go_to(self, row: int, position: Any) -> None:
        if not self.own:
            return self.reader.go_to(row, position)
        if position["row"] != row:
            raise ValueError
        return self.reader.go_to(self.share.rows(row, 0)[0], position["each"][self.share.number])


def shared(reader: Reader, sharded: Sharded | None, hosts: Hosts) -> Reader:
    """Returns what reads the rows of a run: of one process the reader itself."""
    return Shared(reader, sharded, hosts) if sharded is not None and hosts.many else reader


def _joined(mesh: Mesh) -> Callable[..., PyTree]:
    def join(parts: PyTree, index: jax.Array) -> PyTree:
        # Gathered and not summed over masks, for −0.0 + 0.0 is 0.0.
        whole = jax.lax.all_gather(parts, "process", tiled=True)
        return jax.tree.map(lambda x: jnp.take(x, index, axis=0), whole)

    specs = (PartitionSpec("process"), PartitionSpec())
    mapped = jax.shard_map(join, mesh=mesh, in_specs=specs, out_specs=PartitionSpec(), check_vma=False)
    return kept((_joined, mesh), lambda: jax.jit(mapped))


def comparable(problem: Any, streams: dict[int, Stream]) -> tuple[Any, list[str]]:
    """Returns what all processes must have been given alike: arrays, and facts about streams.

    The rows of iterators are those of one process.
    """
    leaves = jax.tree.leaves(problem, is_leaf=lambda x: isinstance(x, Stream))
    readers = [stream.reader for stream in streams.values()]
    return [x for x in leaves if not isinstance(x, Stream)], [
        str(reader.one) if reader.own else reader.about for reader in readers
    ]


def warn_if_equal(hosts: Hosts, streams: dict[int, Stream], names: list[str]) -> None:
    """Warns of iterators that give every process the same rows, which a step then sees repeatedly."""
    levels = {id(stream.reader): k for k, stream in streams.items() if stream.reader.own}
    for k in levels.values():
        digest = hashlib.sha256(streams[k].reader.about.encode()).digest()
        digests = hosts.told(np.frombuffer(digest[:8], np.uint64))
        if hosts.first and len(np.unique(digests)) < len(digests):
            warn(
                f"level {names[k]!r}: iterators of two processes begin with the same rows, and a step "
                "would see them more than once: give every process its share, such as "
                "dataset[jax.process_index()::jax.process_count()]."
            )
