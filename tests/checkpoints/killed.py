"""Runs to be killed. As a program: makes one run after another, each in a process that is killed."""

import itertools
import json
import os
import random
import signal
import sys
import time
from pathlib import Path

STEPS, EVERY, PORTION = 4_000, 10, 500


def make(kind, folder=None, **kept):
    """A run of the given kind: a minimisation, a sweep, stages, or one on rows from an iterator."""
    import numpy as np
    import optax

    import nestax as nx

    rows = nx.datasets.synthetic_returns(200, 4)
    problem = nx.problems.mean_deviation(rows, delta=1e-2)
    facts = {"batch_size": 2, "record_every": EVERY, "record": ["value", "exact_value"]}
    if folder is not None:
        facts["checkpoint"] = nx.Checkpoint(folder, **kept)
    if kind == "minimize":
        return nx.minimize(problem, nx.SMVR(beta=0.3), optax.adam(0.01), steps=STEPS, seed=5, **facts)
    if kind == "stream":
        stream = nx.Stream(batches(rows), batches=True)
        problem = problem.with_data(mean=stream, variance=stream)
        facts["record"] = ["value"]
        return nx.minimize(problem, nx.SMVR(beta=0.3), optax.adam(0.01), steps=STEPS, seed=5, **facts)
    if kind == "stages":
        stages = [nx.theory.Stage(lr=0.05 / 2**k, beta=0.3 / 2**k, steps=STEPS // 4) for k in range(4)]
        return nx.solve_stages(problem, stages, seed=5, **facts)
    return nx.sweep(
        problem,
        lambda s: (nx.SMVR(beta=0.3), optax.sgd(s.lr)),
        seeds=[1, 2],
        steps=STEPS,
        settings={"lr": np.array([0.01, 0.05])},
        **facts,
    )


def batches(rows):
    """Batches of rows without an end, no two of them alike."""
    for number in itertools.count(1):
        yield rows[7 * number % 150 :][: 1 + number % 50] * (1 + 1 / number)


def prepare():
    """The same arithmetic as in the tests; a chunk is one stride, so that there are many moments."""
    import jax

    from nestax.loop import chunks as drive
    from nestax.streams import feed as feeding

    jax.config.update("jax_enable_x64", True)
    drive.CHUNK_SECONDS = 0.0
    feeding.PORTION_STEPS = PORTION


def die_inside(operation, call):
    """Ends the process in the middle of the n-th call of a file operation."""
    from nestax.checkpoints.files import Files

    usual, calls = getattr(Files, operation), [0]

    def deadly(self, *args):
        calls[0] += 1
        if calls[0] == call:
            if operation == "write":
                usual(self, args[0], args[1][: len(args[1]) // 2])
            os.kill(os.getpid(), signal.SIGKILL)
        return usual(self, *args)

    setattr(Files, operation, deadly)


def run_and_be_killed(kind, folder, moment):
    """In a process of its own; tells through a pipe that the first checkpoint is there."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            prepare()
            if isinstance(moment, list):
                die_inside(*moment)
            from nestax.checkpoints.keeper import Keeper

            usual = Keeper.visit

            def telling(self, *args, **flags):
                out = usual(self, *args, **flags)
                os.write(writer, b".")
                return out

            Keeper.visit = telling
            make(kind, folder, every=0)
        finally:
            os._exit(3)  # not killed in time
    os.close(writer)
    os.read(reader, 1)
    if not isinstance(moment, list):
        time.sleep(moment)
        os.kill(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    os.close(reader)
    return os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL


def moments(count, inside, seed):
    """``inside`` of them within a file operation, the others so many seconds after the first save."""
    rng = random.Random(seed)
    names = ["write", "write", "fsync", "rename", "fsync_folder"]
    deadly = [[names[k % len(names)], rng.randint(2, 60)] for k in range(inside)]
    return deadly + [rng.uniform(0.0, 0.5) for _ in range(count - inside)]


if __name__ == "__main__":
    # Imported before the fork, and so once. Importing nestax starts JAX, whose threads no fork survives.
    import equinox  # noqa: F401
    import optax  # noqa: F401

    kind, place, plan = sys.argv[1], Path(sys.argv[2]), json.loads(sys.argv[3])
    done = [run_and_be_killed(kind, str(place / str(k)), moment) for k, moment in enumerate(plan)]
    print(json.dumps(done))
