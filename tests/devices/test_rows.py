"""Sums and rows that devices share, and what is refused. Here on one device, as tests have it."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec
from tests.support.asked import asked

import nestax as nx
from nestax.devices.asked import sharded_in
from nestax.devices.hosts import Hosts, digest_of
from nestax.devices.mesh import at_place, line_of, sharded_over
from nestax.devices.rows import Sharded
from nestax.draws.rows import HERE, arrived
from nestax.errors import SettingError

ROWS = np.random.default_rng(0).normal(size=(96, 3))


@pytest.fixture
def sharded():
    return Sharded(line_of(1, "rows"), "rows")


@pytest.fixture
def problem():
    return nx.problems.mean_deviation(nx.datasets.synthetic_returns(96, 3), delta=1e-2).replace(
        exact=None
    )


def test_a_sum_over_parts_is_the_sum(sharded):
    rows = at_place(jnp.asarray(ROWS), sharded.split)
    twice = 2.0 * jnp.ones(3)
    total = jax.jit(lambda x: sharded.total(lambda part: jnp.sum(part * twice, 0), x))
    np.testing.assert_allclose(total(rows), 2 * ROWS.sum(0), rtol=1e-13)


def test_the_parts_of_a_sum_do_not_depend_on_the_devices_that_divide_them():
    class Wide(Sharded):
        size = 4

    one = Sharded(line_of(1, "rows"), "rows")
    four = Wide(one.mesh, "rows")
    assert one.parts(96, 64) == four.parts(96, 64) == 32
    assert four.parts(100, 64) == 4


@pytest.mark.parametrize("kind", ["float64", "float32", "bfloat16", "int32", "bool"])
def test_rows_are_read_and_written_by_their_owner(sharded, kind):
    rows = at_place(jnp.asarray(ROWS > 0 if kind == "bool" else ROWS * 100, kind), sharded.split)
    index = jnp.asarray([[3, 95], [0, 3]])
    taken = jax.jit(sharded.take)(rows, index)
    assert np.array_equal(taken, np.asarray(rows)[np.asarray(index)])
    table = rows.astype("uint8" if kind == "bool" else kind)
    move = lambda rows, number, row, one: ((rows[number], row), one)
    visit = jax.jit(lambda *args: sharded.visit(move, *args))
    (read, old), written = visit(rows, table, jnp.asarray([5, 7]), jnp.zeros((2, 3), table.dtype))
    assert np.array_equal(read, np.asarray(rows)[[5, 7]])
    expected = np.array(table)
    assert np.array_equal(old, expected[[5, 7]])
    expected[[5, 7]] = 0
    assert np.array_equal(written, expected)


def test_a_negative_zero_stays_one(sharded):
    rows = at_place(-jnp.zeros((4, 1)), sharded.split)
    assert np.signbit(jax.jit(sharded.take)(rows, jnp.asarray([2]))).all()


@pytest.mark.parametrize("weighted", [False, True])
def test_a_run_over_rows_is_the_run_without_a_mesh_up_to_rounding(problem, weighted):
    if weighted:
        data = nx.Population(nx.datasets.synthetic_returns(96, 3), weights=np.arange(1.0, 97.0))
        problem = problem.with_data(mean=data, variance=data)
    run = lambda **more: nx.minimize(
        problem, nx.SnapshotSMVR(period=7), optax.sgd(0.1), steps=20, **asked(**more)
    )
    plain, sharded = run(batch_size=2), run(batch_size=2, mesh=1)
    np.testing.assert_allclose(sharded.w, plain.w, rtol=1e-10)
    for name, column in plain.records.items():
        np.testing.assert_allclose(sharded.records[name], column, rtol=1e-9, err_msg=name)


def test_rows_that_arrive_sharded_stay_so(problem, sharded):
    data = jax.device_put(nx.datasets.synthetic_returns(96, 3), sharded.split)
    there = problem.with_data(mean=data, variance=data)
    assert sharded_in(there) == sharded
    run = lambda problem, **more: nx.minimize(
        problem, nx.SMVR(beta=0.1), optax.sgd(0.1), steps=10, batch_size=2, **asked(**more)
    )
    assert np.array_equal(run(there).w, run(problem, mesh=1).w)


def test_an_interval_over_rows_is_the_one_without_a_mesh(problem):
    plain = nx.evaluate(problem, problem.w0)
    sharded = nx.evaluate(problem, problem.w0, devices=1)
    assert sharded.value == pytest.approx(plain.value, rel=1e-12)
    assert sharded.stderr == pytest.approx(plain.stderr, rel=1e-12)


def test_a_sweep_over_lanes_is_the_one_without_a_mesh_up_to_rounding(problem):
    run = lambda **more: nx.sweep(
        problem,
        lambda s: (nx.SMVR(beta=0.1), optax.sgd(s.lr)),
        settings=nx.grid(lr=[0.1, 0.2]),
        seeds=[[1, 2], [3, 4]],
        steps=20,
        batch_size=2,
        **asked(**more),
    )
    plain, sharded = run(), run(mesh=1)
    for name, column in plain.records.items():
        np.testing.assert_allclose(sharded.records[name], column, rtol=1e-9, err_msg=name)


def mesh_of(kind, *names):
    return Mesh(
        np.asarray(jax.devices()[:1]).reshape((1,) * len(names)), names, axis_types=(kind,) * len(names)
    )


@pytest.mark.parametrize(
    ("mesh", "words"),
    [
        (
            64,
            "devices=64 asks for more than the .* there are; a processor counts as one, unless",
        ),
        (0, "devices must be a whole number of at least 1; got 0"),
        ("gpus", r"devices must be a number of devices, or a jax.sharding.Mesh such as .*; got str"),
        (lambda: mesh_of(AxisType.Explicit, "rows"), "mesh must have axes of the type Auto"),
        (lambda: mesh_of(AxisType.Auto, "a", "b"), "mesh has the axes a, b: call one of them 'rows'"),
    ],
)
def test_a_mesh_that_cannot_be_used_is_refused(mesh, words):
    with pytest.raises(SettingError, match=words):
        sharded_over(mesh() if callable(mesh) else mesh, "rows", ("rows",))


def test_what_devices_cannot_share_equally_is_refused(problem, monkeypatch):
    monkeypatch.setattr(Sharded, "size", 5)
    with pytest.raises(
        SettingError, match="96 rows cannot be shared equally by 5 devices: take 95 rows"
    ):
        nx.minimize(problem, nx.SMVR(), optax.sgd(0.1), steps=5, batch_size=2, devices=1)
    with pytest.raises(SettingError, match="2 settings cannot be shared equally by 5 devices: take 5"):
        nx.sweep(
            problem,
            lambda s: (nx.SMVR(beta=0.1), optax.sgd(s.lr)),
            settings=nx.grid(lr=[0.1, 0.2]),
            seeds=1,
            steps=5,
            devices=1,
        )
    rows = nx.Devices(1, "rows")
    with pytest.raises(SettingError, match="the devices can share lanes here; got 'rows'"):
        nx.sweep(problem, lambda s: None, settings=nx.grid(lr=[0.1]), seeds=1, steps=5, devices=rows)


def test_processes_that_do_not_know_of_each_other_are_refused(monkeypatch):
    monkeypatch.setenv("SLURM_STEP_NUM_TASKS", "4")
    with pytest.raises(SettingError, match=r"one of 4 processes of Slurm.*jax.distributed.initialize"):
        sharded_over(1, "rows", ("rows",))


def test_one_process_decides_for_itself():
    hosts = Hosts(line_of(1, "rows"))
    assert hosts.first
    assert not hosts.many
    assert hosts.decide(lambda: "so") == "so"
    assert hosts.least(3.0) == 3.0
    assert hosts.any(True)
    assert digest_of({"x": np.ones(3)}) != digest_of({"x": np.zeros(3)})
    assert digest_of(jax.random.key(1)) != digest_of(jax.random.key(2))


def test_only_a_leading_axis_counts_as_sharded(sharded):
    columns = jax.device_put(np.ones((2, 4)), NamedSharding(sharded.mesh, PartitionSpec(None, "rows")))
    assert arrived(columns) == HERE
    assert arrived(np.ones(3)) == HERE


def test_a_checkpoint_of_another_mesh_is_refused(problem, tmp_path):
    """One whose bits would be others; without a mesh the rows are summed whole."""
    run = lambda **more: nx.minimize(
        problem, nx.Plain(), optax.sgd(0.1), steps=3, batch_size=2, **asked(checkpoint=tmp_path, **more)
    )
    run(mesh=1)
    words = r"holds another run: parts of the rows of level '\w+' was 32 and is not there; .* Repeat the"
    with pytest.raises(SettingError, match=words):
        run(resume=True)
