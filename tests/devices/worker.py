"""One process of the tests of this folder: ``worker.py TASK NUMBER PROCESSES PORT [FOLDER]``."""

import dataclasses
import hashlib
import json
import math
import os
import random
import re
import shutil
import signal
import sys
import tempfile
import threading
import time
import types
import warnings
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import NamedSharding, PartitionSpec
from tests.support.asked import asked

import nestax as nx
from nestax.checkpoints import sharded
from nestax.devices.hosts import ProcessLostError, gathered
from nestax.devices.mesh import sharded_over
from nestax.loop import chunks
from nestax.run.prepare import Budget, as_method, prepare
from nestax.streams import feed

SHORT = {"batch_size": 2, "record_every": 10}


def problem(rows=64, **changes):
    """Its exact values come from passes over the population."""
    made = nx.problems.mean_deviation(nx.datasets.synthetic_returns(rows, 3), delta=1e-2)
    return made.replace(exact=None, **changes)


def digest(result):
    columns = [np.asarray(column) for _, column in sorted(result.records.items())]
    parts = [np.asarray(x) for x in jax.tree.leaves(gathered(result.w))]
    return hashlib.sha256(b"".join(x.tobytes() for x in [*columns, *parts])).hexdigest()[:16]


def in_lanes(method=nx.SMVR, steps=40, **more):
    return nx.sweep(
        problem(),
        lambda s: (method(beta=s.beta), optax.sgd(s.lr)),
        settings=nx.grid(beta=[0.1, 0.5], lr=[0.1, 0.2]),
        seeds=2,
        steps=steps,
        **asked(**SHORT | more),
    )


def in_rows(method, steps=40, **more):
    return nx.minimize(problem(), method, optax.sgd(0.1), steps=steps, **asked(**SHORT | more))


def blocks_problem(count=16):
    """Blocks of which a step visits 4; two levels draw from them."""
    rows = np.random.default_rng(0).normal(size=(count, 6, 3))
    data = nx.Blocks(rows, visit=4)
    inner = nx.Level(lambda w, x: (jnp.tanh(x @ w), w), data=data, name="inner")
    outer = nx.Level(lambda u, x: jnp.exp(u[0]) + (x @ u[1]) ** 2, data=data)
    return nx.Problem([inner, outer], w0=jnp.ones(3))


def in_blocks(method, steps=20, **more):
    more = {"shard": "blocks", "record": ("value", "exact_value")} | more
    return nx.minimize(blocks_problem(), method, optax.sgd(0.05), steps=steps, **asked(**SHORT | more))


BLOCKS = {
    "PerBlock": lambda: nx.PerBlock(nx.AdjointSMVR(beta=0.1)),
    "BlockSMVR": lambda: nx.BlockSMVR(beta=0.2),
}
# Made when they are used: nothing may be computed before processes know of each other.
ESTIMATORS = {
    "SMVR": lambda: nx.SMVR(beta=0.1),
    "AdjointSMVR": lambda: nx.AdjointSMVR(beta=0.1),
    "SnapshotSMVR": lambda: nx.SnapshotSMVR(period=10),
    "Exact": lambda: nx.Exact(),
}


def bits(folder, meshes=None, names=(*ESTIMATORS, *BLOCKS)):
    """Digests of runs over lanes, rows and blocks, by the number of devices."""
    del folder
    out = {}
    for count in meshes or (1, 2, 4):
        own = out.setdefault(str(count), {})
        for name in names:
            if name in BLOCKS:
                own[f"blocks {name}"] = digest(in_blocks(BLOCKS[name](), mesh=count))
                continue
            own[f"rows {name}"] = digest(in_rows(ESTIMATORS[name](), mesh=count))
            if name != "Exact":
                own[f"lanes {name}"] = digest(in_lanes(type(ESTIMATORS[name]()), mesh=count))
    return out


def moved(folder):
    """Runs that stop on one number of devices and go on on another, over lanes and over rows."""
    out = {}
    for name, run in {
        "lanes": in_lanes,
        "rows": lambda **o: in_rows(nx.SnapshotSMVR(period=10), **o),
        "blocks": lambda **o: in_blocks(nx.BlockSMVR(beta=0.2), **o),
    }.items():
        kept = {"checkpoint": Path(folder) / name, "steps": 40}
        run(mesh=2, callback=lambda record: record["step"] >= 20, **kept)
        out[name] = digest(run(mesh=1, resume=True, **kept)) == digest(run(mesh=2, steps=40))
    return out


def is_key(x):
    return jax.dtypes.issubdtype(x.dtype, jax.dtypes.prng_key)


def few_bits(folder):
    return bits(folder, (len(jax.devices()),), ("SnapshotSMVR", "PerBlock"))


def gather(folder):
    """The largest array that two devices gather, and memory of one over its share of rows and table."""
    del folder
    rows = 2**16
    of_rows = program_of(problem(rows), nx.SnapshotSMVR(period=10), "rows")
    blocks = 2**15
    of_blocks = program_of(blocks_problem(blocks), nx.BlockSMVR(beta=0.2), "blocks")
    number = np.dtype(float).itemsize if jax.config.jax_enable_x64 else 4
    return {
        "gathered": max(of_rows[0], of_blocks[0]),
        "memory": of_rows[1] / (rows * 3 * number / 2),
        "memory of blocks": of_blocks[1] / (blocks * 6 * 3 * number / 2 + of_blocks[2]),
    }


def program_of(chain, estimator, shard):
    """Entries of the largest array that two devices gather, bytes that one takes, and of its carry."""
    sharded = sharded_over(2, shard, (shard,))
    method = as_method(chain, estimator, optax.sgd(0.1))
    budget = Budget(steps=100, batch_size=2)
    run = prepare(chain, method, budget, jax.random.key(0), sharded=sharded)
    whole = run.compiled
    args = (
        jax.tree.leaves(whole.run),
        whole.run.packing.pack(whole.start().carry),
        *map(np.int32, (0, 1, 1)),
    )
    program = whole.advancing().lower(*args).compile()
    shapes = re.findall(r"= \w+\[([\d,]*)\]\S* all-(?:gather|to-all)\(", program.as_text())
    # An array that is passed twice is there once.
    shards = [x.addressable_shards[0].data for x in args[0] if not is_key(x)]
    held = {x.unsafe_buffer_pointer(): x.nbytes for x in shards}
    most = max((math.prod(int(n) for n in shape.split(",") if n) for shape in shapes), default=0)
    table = sum(x.addressable_shards[0].data.nbytes for x in args[1])
    took = sum(held.values()) + program.memory_analysis().temp_size_in_bytes
    return most, took, table


def in_pieces(w0=None, **more):
    """A small network; both of its arrays can be cut in two."""
    rows = np.random.default_rng(0).normal(size=(32, 3))
    w0 = w0 or {"a": jnp.ones((4, 3)) / 9, "b": jnp.ones(4) / 9}
    level = nx.Level(lambda w, x: jnp.tanh(w["a"] @ x) @ w["b"] + x[0], data=rows)
    network = nx.Problem([level, nx.Level(jnp.exp, name="outer")], w0=w0)
    return nx.minimize(network, nx.SMVR(beta=0.1), optax.adam(0.1), steps=20, **asked(**SHORT | more))


def places(folder):
    """What share of an array a device holds at most."""
    del folder
    share = lambda x: x.addressable_shards[0].data.size / x.size
    most = lambda *trees: max(map(share, jax.tree.leaves(trees)))
    blocks = in_blocks(nx.BlockSMVR(beta=0.2), mesh=2).carry.lane
    alone = in_pieces()
    pieces = in_pieces(mesh=2, shard="model")
    arrived = in_pieces(pieces_of_ones())
    like = lambda lane: (lane.w, lane.estimate.grad, lane.opt_state[0].mu, lane.opt_state[0].nu)
    near = lambda a, b: bool(np.allclose(a, b, rtol=1e-3))
    return {
        "table": most(blocks.state.table),
        "weights": most(like(pieces.carry.lane)),
        "arrived": most(like(arrived.carry.lane)),
        "interval": same_interval(),
        "near": all(near(pieces.w[k], w) and near(arrived.w[k], w) for k, w in alone.w.items()),
    }


def same_interval():
    """Over blocks on two devices it is the one without them, up to rounding."""
    told = lambda **more: dataclasses.astuple(nx.evaluate(blocks_problem(), np.ones(3), **asked(**more)))
    return bool(np.allclose(told(), told(mesh=2, shard="blocks"), rtol=1e-4))


def pieces_of_ones():
    """The first weights, in pieces that the user has chosen."""
    sharded = sharded_over(2, "model", ("model",))
    cut = NamedSharding(sharded.mesh, PartitionSpec("model"))
    return {"a": jax.device_put(np.ones((4, 3)) / 9, cut), "b": jax.device_put(np.ones(4) / 9, cut)}


def together(folder):
    """A run with everything that a host decides, in processes that differ in all of it."""
    first = jax.process_index() == 0
    uneven(jax.process_index())
    seen = []

    def look(record):
        assert first, "callbacks are asked in the first process alone"
        seen.append(record.w.shape)
        return record["step"] >= 60

    kept = {"checkpoint": Path(folder) / ("kept" if first else "elsewhere"), "checkpoint_every": 0.0}
    stopped = in_lanes(steps=100, mesh=2, callback=look, **kept)
    gone_on = in_lanes(steps=100, mesh=2, resume=True, **kept)
    late = in_rows(nx.SMVR(beta=0.1), steps=100_000, seconds=0.2, mesh=2)
    return {
        "stopped": stopped.message,
        "step": int(stopped.records["step"][-1]),
        "seen": len(seen),
        "files": sorted(path.name for path in Path(folder).iterdir()),
        "digest": digest(gone_on),
        "late": late.message.split(" ")[:2],
        "steps": int(late.records["step"][-1]),
    }


def uneven(number):
    """Another clock, other memory, and a load that comes and goes."""
    dice = random.Random(number)
    chunks.time = types.SimpleNamespace(perf_counter=lambda: time.perf_counter() * 10**number)
    chunks.free_memory = lambda: (2.0**30 * (1 + number), f"device {number}")

    def load():
        while True:
            begin = time.perf_counter()
            while time.perf_counter() - begin < dice.random() * 0.05 * number:
                pass
            time.sleep(dice.random() * 0.02)

    threading.Thread(target=load, daemon=True).start()


def long(folder, **more):
    """Goes on until somebody ends it."""
    print("begun", flush=True)
    kept = {"checkpoint": Path(folder) / "kept", "checkpoint_every": 0.0, "resume": True}
    return {"message": in_lanes(steps=2_000_000, record_every=1000, mesh=2, **kept, **more).message}


def caught(folder):
    """An error that somebody catches, and an end of their own after it."""
    try:
        long(folder)
    except ProcessLostError as error:
        print(error, flush=True)
        jax.distributed.shutdown()
        sys.exit(7)


def stopped_in_pieces(folder):
    """A run that has stopped at step 20, its state written by those who hold it."""
    sharded.GATHERED_BYTES = 0
    kept = {"checkpoint": Path(folder) / "kept", "checkpoint_every": 0.0}
    in_lanes(mesh=2, callback=lambda record: record["step"] >= 20, **kept)
    return {"kept": files_of(Path(folder) / "kept")}


def files_of(folder):
    return sorted(path.name for path in folder.iterdir() if path.name.startswith("checkpoint"))


def resumed_from_pieces(folder):
    """The same run on other numbers of devices, where newer pieces are damaged, and without Orbax."""
    sharded.GATHERED_BYTES = 0
    count = len(jax.devices())
    out = {"whole": digest(in_lanes(mesh=count))}

    def resume(name, **more):
        there = Path(folder) / name
        if jax.process_index() == 0:
            shutil.copytree(Path(folder) / "kept", there)
        return there, lambda: digest(
            in_lanes(**{"mesh": count, "checkpoint": there, "resume": True} | more)
        )

    there, run = resume("again", checkpoint_every=0.0)
    out["again"] = run()
    out["files"] = files_of(there) if there.is_dir() else []
    if count == 1 or jax.process_count() > 1:
        return out
    out["one device"] = resume("one", mesh=1)[1]()
    sharded.GATHERED_BYTES = 2**30
    out["gathered"] = resume("gathered")[1]()
    there, run = resume("damaged")
    newest = max(there.glob("*.shards"))
    largest = max((path for path in newest.rglob("*") if path.is_file()), key=lambda p: p.stat().st_size)
    data = bytearray(largest.read_bytes())
    data[len(data) // 2] ^= 1
    largest.write_bytes(data)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        out["damaged"] = run()
    out["told"] = " ".join(str(warning.message) for warning in told)
    sys.modules["orbax"] = None
    sys.modules["orbax.checkpoint"] = None
    try:
        resume("without")[1]()
    except nx.SettingError as error:
        out["without"] = str(error)
    return out


def pieces(folder):
    return stopped_in_pieces(folder) | resumed_from_pieces(folder)


def tables_and_weights(folder):
    """Tables of blocks and weights that stop at step 10, their pieces written by those who hold them."""
    sharded.GATHERED_BYTES = 0
    out = {}
    for name, run, after in [
        ("blocks", lambda **more: in_blocks(nx.BlockSMVR(beta=0.2), **more), 1),
        ("weights", lambda **more: in_pieces(shard="model", **more), 2),
    ]:
        kept = {"checkpoint": Path(folder) / name}
        run(mesh=2, callback=lambda record: record["step"] >= 10, **kept)
        assert list(kept["checkpoint"].glob("*.shards"))
        after = max(after, jax.process_count())
        out[name] = digest(run(mesh=after, resume=True, **kept)) == digest(run(mesh=2))
    return out


def without_orbax(folder):
    sharded.GATHERED_BYTES = 0
    sys.modules["orbax"] = None
    in_lanes(mesh=2, checkpoint=Path(folder or "kept"))


def apart(folder):
    """Every process has a folder of its own."""
    sharded.GATHERED_BYTES = 0
    with tempfile.TemporaryDirectory() as own:
        path = Path(own) / "kept"
        sharded.Path = lambda words: path
        in_lanes(mesh=2, checkpoint=path)


def long_in_pieces(folder):
    sharded.GATHERED_BYTES = 0
    return long(folder)


def ended(folder):
    """The run of ``long``, as far as it has come, and without having been ended."""
    kept = {"checkpoint": Path(folder) / "kept", "resume": True}
    reach = int(os.environ["REACH"])
    again = in_lanes(steps=reach, record_every=1000, mesh=2, **kept)
    return {"resumed": digest(again), "whole": digest(in_lanes(steps=reach, record_every=1000, mesh=2))}


class Loader:
    """Batches of five of the rows of one process, with a state, as Grain's have."""

    def __init__(self, rows, at=lambda row: None):
        self.rows = rows[jax.process_index() :: jax.process_count()]
        self.at = at  # is told of every row that it is asked for
        self.next = 0

    def __iter__(self):
        return self

    def __next__(self):
        if self.next >= len(self.rows):
            raise StopIteration
        self.at(self.next)
        self.next += 5
        return self.rows[self.next - 5 : self.next]

    def get_state(self):
        return {"next": self.next}

    def set_state(self, state):
        self.next = state["next"]


def rows_of_streams(count):
    return np.random.default_rng(3).normal(size=(count, 3))


def in_turns(data, steps=40, **more):
    """Both levels read one stream; several portions."""
    feed.PORTION_STEPS = 10
    several = jax.process_count() > 1
    rows = data if isinstance(data, nx.Stream) else nx.Stream(data, batches=hasattr(data, "next"))
    chain = problem().with_data(mean=rows, variance=rows)
    more = SHORT | {"batch_size": 3, "mesh": len(jax.devices()) if several else None} | more
    return nx.minimize(chain, nx.SMVR(beta=0.1), optax.sgd(0.1), steps=steps, **asked(**more))


def streams(folder):
    """Digests of runs whose processes read a share each, which must be those of one process."""
    first = jax.process_index() == 0
    if jax.process_count() > 1:
        uneven(jax.process_index())
    short, long = rows_of_streams(97), rows_of_streams(511)
    own = long[jax.process_index() :: jax.process_count()]
    out = {
        "array": digest(in_turns(short)),
        "rows": digest(in_turns(iter(own))),
        "state": digest(in_turns(Loader(long))),
    }

    def fail(row):
        if row * jax.process_count() >= 150 and jax.process_index() == jax.process_count() - 1:
            raise OSError("the disk is gone")

    ended = in_turns(Loader(long[:200]))
    failed = in_turns(Loader(long, fail))
    out |= {"ended": [int(ended.carry.step), digest(ended)], "told": [ended.message, failed.message]}
    kept = {"checkpoint": Path(folder) / ("kept" if first else "elsewhere"), "checkpoint_every": 0.0}
    in_turns(Loader(long), callback=lambda record: record["step"] >= 20, **kept)
    out["resumed"] = digest(in_turns(Loader(long), resume=True, **kept))
    return out


def more_streams(folder):
    """A file, bad rows, a sweep and rows that are no shares."""
    import pyarrow
    import pyarrow.parquet

    count = len(jax.devices()) if jax.process_count() > 1 else None
    rows = rows_of_streams(97)
    path = Path(folder) / f"{jax.process_index()}.parquet"
    table = pyarrow.table({name: rows[:, k] for k, name in enumerate("abc")})
    pyarrow.parquet.write_table(table, path, row_group_size=20)
    bad = rows_of_streams(97)
    bad[70] = np.nan
    lanes = nx.Stream(rows)
    swept = nx.sweep(
        problem().with_data(mean=lanes, variance=lanes),
        lambda s: (nx.SMVR(beta=s.beta), optax.sgd(0.1)),
        settings=nx.grid(beta=[0.1, 0.3, 0.5, 0.9]),
        seeds=1,
        steps=40,
        devices=count or 1,
        **SHORT,
    )
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        in_turns(iter(rows_of_streams(511)), steps=2)
    try:
        nx.evaluate(problem().with_data(mean=lanes, variance=lanes), np.ones(3) / 3, devices=count)
        refused = ""
    except nx.ProblemError as error:
        refused = str(error)
    return {
        "file": digest(in_turns(nx.Stream(path))),
        "swept": digest(swept),
        "weights": gathered(in_turns(rows, shard="model").w).tolist(),
        "bad": in_turns(bad).message,
        "warned": " ".join(str(warning.message) for warning in told),
        "refused": refused,
    }


def waiting(folder):
    """The second process waits for a row that does not come, unless ``COME`` is set."""

    def at(row):
        if row >= 60 and jax.process_index() == 1 and "COME" not in os.environ:
            (Path(folder) / "waiting").touch()
            time.sleep(600)

    kept = {"checkpoint": Path(folder) / "kept", "resume": True}
    result = in_turns(Loader(rows_of_streams(511), at), **kept)
    return {"message": result.message, "digest": digest(result), "step": result.carry.step}


def array_moves(folder):
    """A run on an array that stops at step 20 in several processes, and goes on in one."""
    half = (lambda record: record["step"] >= 20) if jax.process_count() > 1 else None
    kept = {"checkpoint": Path(folder) / "kept", "resume": True, "callback": half}
    return {"digest": digest(in_turns(rows_of_streams(97), **kept))}


def wrong(folder):
    """Data that differ between the processes."""
    del folder
    rows = nx.datasets.synthetic_returns(64, 3, seed=jax.process_index())
    nx.minimize(nx.problems.mean_deviation(rows), nx.SMVR(beta=0.1), optax.sgd(0.1), steps=10, devices=2)


def failing(folder):
    """An error in one process alone."""
    del folder

    def look(record):
        raise ValueError("the callback fails")

    in_lanes(mesh=2, callback=look)


def main():
    task, number, processes, port, *folder = sys.argv[1:]
    if int(processes) > 1:
        jax.config.update("jax_cpu_collectives_implementation", "gloo")
        jax.distributed.initialize(
            f"localhost:{port}", int(processes), int(number), heartbeat_timeout_seconds=20
        )
    out = globals()[task](*(folder or [None]))
    print(json.dumps(out), flush=True)


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.default_int_handler)
    main()
