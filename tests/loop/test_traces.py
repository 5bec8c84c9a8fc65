"""How often a run traces what it is made of, and how many programs it compiles."""

import logging

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import nestax as nx
from nestax.loop.step import Lane
from nestax.programs import TRACES

#: What JAX compiles for a key, and for a number that is not of a run.
OF_JAX = {"jit(stage)", "jit(_threefry_seed)"}
if jax.__version_info__ < (0, 10):  # they put a number of the host on the device by a program
    OF_JAX |= {"jit(convert_element_type)"}
ROWS = np.random.default_rng(0).normal(size=(40, 3)) + 1


@pytest.fixture
def compilations():
    """Names of the programs that JAX has compiled since the list was emptied."""
    names = []

    class Note(logging.Handler):
        def emit(self, record):
            if record.getMessage().startswith("Compiling"):
                names.append(record.getMessage().split()[1])

    note = Note()
    logger = logging.getLogger("jax._src.interpreters.pxla")
    logger.addHandler(note)
    with jax.log_compiles():
        yield names
    logger.removeHandler(note)


@pytest.fixture
def calls(monkeypatch):
    """How often each function of a lane has been traced."""
    counts = {}

    def count(name, own):
        def counted(*args):
            counts[name] = counts.get(name, 0) + 1
            return own(*args)

        monkeypatch.setattr(Lane, name, counted)

    for name in ("start", "draw", "step", "observe"):
        count(name, getattr(Lane, name))
    return counts


def chain():
    """With functions of its own, which are traced for every run."""
    return nx.Problem(
        [
            nx.Level(lambda w, r: (r @ w, w), ROWS),
            nx.Level(lambda u: jnp.log(1 + u[0] ** 2) + u[1] @ u[1]),
        ],
        w0=np.ones(3),
    )


@pytest.mark.parametrize(
    ("estimator", "steps"),
    [
        (nx.SMVR(0.1), 1),  # it keeps all that is equal at the start
        (nx.NLASG(), 2),  # it does not, and is traced again
        (nx.NestedSPIDER(period=5, restart_batch=4), 2),  # an ordinary step and a restart
        (nx.SnapshotSMVR(0.1, period=5), 3),  # an ordinary one, twice, and a snapshot
    ],
    ids=lambda x: type(x).__name__ if not isinstance(x, int) else "",
)
def test_every_function_of_a_lane_is_traced_once(estimator, steps, calls):
    """And a step again, if it does not keep all that is equal at the start."""
    nx.minimize(chain(), estimator, optax.sgd(0.1), steps=7, batch_size=2)
    assert calls == {"start": 1, "draw": 1, "step": steps, "observe": 1}


def test_a_run_compiles_its_start_and_its_steps_and_a_key(compilations):
    """Numbers and arrays of the host are put on the device as they are."""
    problem = chain()
    nx.minimize(problem, nx.SMVR(0.1), optax.sgd(0.1), steps=7, batch_size=2)
    jax.clear_caches()
    compilations.clear()
    nx.minimize(problem, nx.SMVR(0.1), optax.sgd(0.1), steps=7, batch_size=2)
    own = [name for name in compilations if "compiled" in name]
    assert len(own) == 2
    assert set(compilations) <= {*own, *OF_JAX}


def test_a_grid_compiles_its_start_and_its_steps_and_keys(compilations):
    build = lambda s: (nx.SMVR(s.beta), optax.sgd(0.1))
    run = lambda seeds: nx.sweep(
        chain(), build, settings=nx.grid(beta=[0.1, 0.5]), seeds=seeds, steps=7, batch_size=2
    )
    run(3)
    for seeds in (3, [[1, 2, 3], [4, 5, 6]]):
        jax.clear_caches()
        compilations.clear()
        run(seeds)
        own = [name for name in compilations if "compiled" in name]
        assert len(own) == 2
        assert set(compilations) <= {*own, *OF_JAX}


def test_data_compile_nothing(compilations):
    """Not for any of their shapes, however many blocks, groups or weights there are."""
    rng = np.random.default_rng(1)
    ragged = [rng.normal(size=(3 + k, 2)) for k in range(20)]
    nx.Blocks(ragged, visit=2)
    nx.Blocks([{"x": rows, "y": np.arange(len(rows))} for rows in ragged], visit=2, replace=False)
    nx.Groups(ragged)
    for rows in ragged:
        nx.Population(rows, weights=1 + np.arange(len(rows)))
    assert compilations == []


def test_weights_compile_nothing(compilations):
    for size in range(2, 6):
        nx.Problem([nx.Level(lambda w, r: jnp.sum(r) * w @ w, ROWS)], w0=np.ones(size))
    assert compilations == []


def test_a_comparison_compiles_one_program_a_method():
    """Tuning and reporting share it, whatever the numbers of settings and seeds."""
    before = dict(TRACES)
    nx.compare(chain(), ["NLASG", "SMVR"], samples=600, batch_size=2, seeds=7, tune_seeds=1)
    new = {name: count - before.get(name, 0) for name, count in TRACES.items()}
    assert {name: count for name, count in new.items() if count} == {"start": 2, "advance": 2}
