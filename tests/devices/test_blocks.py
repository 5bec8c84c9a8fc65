"""Blocks and weights that devices share. Here on one device; several are in ``test_processes.py``."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.sharding import PartitionSpec
from tests.support.asked import asked
from tests.support.processes import Processes

import nestax as nx
from nestax.devices.asked import sharded_in, sharing
from nestax.devices.mesh import beside_weights, line_of, weights_in_pieces
from nestax.devices.rows import Sharded
from nestax.errors import SettingError

OVER_ONE = {"mesh": 1, "shard": "blocks"}
ROWS = np.random.default_rng(0).normal(size=(8, 6, 3))


def chain(data=ROWS, visit=2):
    blocks = nx.Blocks(data, visit=visit)
    inner = nx.Level(lambda w, x: (jnp.tanh(x @ w), w), data=blocks, name="inner")
    outer = nx.Level(lambda u, x: jnp.exp(u[0]) + (x @ u[1]) ** 2, data=blocks, name="outer")
    return nx.Problem([inner, outer], w0=jnp.ones(3))


def pairs():
    """Each row of a list beside all others, in blocks of different lengths."""
    first = np.arange(8)
    ranges = (first, 8 - first // 2)
    data = nx.Conditional(ROWS[:, 0], ROWS[:, :2].reshape(16, 3), visit=2, ranges=ranges)
    inner = nx.Level(lambda w, draw: jnp.tanh(draw[0] @ w) * (draw[1] @ w), data=data, name="inner")
    return nx.Problem([inner, nx.Level(jnp.exp, name="outer")], w0=jnp.ones(3))


def minimised(problem, method, **more):
    more = {"record": ["value", "exact_value", "value_error"], "record_every": 5} | more
    return nx.minimize(problem, method, optax.sgd(0.05), steps=10, batch_size=2, **asked(**more))


@pytest.mark.parametrize(
    ("problem", "method"),
    [
        pytest.param(
            chain,
            nx.PerBlock(nx.AdjointSMVR(beta=0.1), store="bfloat16"),
            marks=pytest.mark.slow,
        ),
        (lambda: chain([rows[: 3 + k % 4] for k, rows in enumerate(ROWS)]), nx.MSVR(0.1, 0.1)),
        (pairs, nx.Plain()),
    ],
)
def test_a_run_over_blocks_is_the_run_without_a_mesh_up_to_rounding(problem, method):
    plain, sharded = minimised(problem(), method), minimised(problem(), method, **OVER_ONE)
    np.testing.assert_allclose(sharded.w, plain.w, rtol=1e-10)
    for name, column in plain.records.items():
        np.testing.assert_allclose(sharded.records[name], column, rtol=1e-8, err_msg=name)


def test_blocks_that_arrive_sharded_stay_so_and_a_table_is_found_again(tmp_path):
    over = Sharded(line_of(1, "blocks"), "blocks", "blocks")
    arrived = chain(jax.device_put(ROWS, over.split))
    assert sharded_in(arrived) == over
    whole = minimised(arrived, nx.BlockSMVR(beta=0.2))
    kept = {"checkpoint": tmp_path, "mesh": 1, "shard": "blocks"}
    minimised(chain(), nx.BlockSMVR(beta=0.2), callback=lambda record: record["step"] >= 5, **kept)
    again = minimised(chain(), nx.BlockSMVR(beta=0.2), resume=True, **kept)
    assert np.array_equal(again.w, whole.w)


def test_an_interval_over_blocks_is_the_one_without_a_mesh():
    plain, sharded = (nx.evaluate(chain(), jnp.ones(3), **asked(**more)) for more in ({}, OVER_ONE))
    assert sharded.value == pytest.approx(plain.value, rel=1e-12)
    assert sharded.stderr == pytest.approx(plain.stderr, rel=1e-12)


def test_what_cannot_be_shared_is_refused(monkeypatch):
    rows = nx.problems.mean_deviation(ROWS[0])
    with pytest.raises(
        SettingError, match=r"the levels hold blocks, and no rows .* pass nx.Devices\(mesh, 'blocks'\)"
    ):
        minimised(chain(), nx.SOX(), mesh=1)
    with pytest.raises(
        SettingError, match=r"the levels hold rows, and no blocks .* pass nx.Devices\(mesh, 'rows'\)"
    ):
        minimised(rows, nx.SMVR(), mesh=1, shard="blocks")
    simulators = [nx.Sampler(lambda key, k=k: k + jax.random.normal(key, (3,))) for k in range(4)]
    with pytest.raises(nx.ProblemError, match="blocks that are simulators have no rows"):
        minimised(chain(simulators), nx.SOX(), mesh=1, shard="blocks", record=["value"])
    monkeypatch.setattr(Sharded, "size", 3)
    with pytest.raises(SettingError, match="8 blocks cannot be shared equally by 3 devices: take 6"):
        minimised(chain(), nx.SOX(), mesh=1, shard="blocks")


@pytest.mark.slow
def test_tables_trackers_and_an_optimiser_lie_in_pieces():
    """What share two devices hold at most of a table, and of all that is like weights."""
    out = Processes("places", devices=2).wait(300)[0].out
    assert out == {"table": 0.5, "weights": 0.5, "arrived": 0.5, "near": True, "interval": True}


def test_weights_are_cut_along_their_longest_axis_that_can_be(monkeypatch):
    monkeypatch.setattr(Sharded, "size", 2)
    over = Sharded(line_of(1, "model"), "model", "model")
    shapes = {"a": (4, 7), "b": (3,), "c": ()}
    places = weights_in_pieces({k: jax.ShapeDtypeStruct(s, float) for k, s in shapes.items()}, over)
    specs = {name: place.spec for name, place in places.items()}
    assert specs == {"a": PartitionSpec("model"), "b": PartitionSpec(), "c": PartitionSpec()}
    beside = beside_weights((5, 4, 7), {(4, 7): places["a"]})
    assert beside.spec == PartitionSpec(None, "model")
    assert beside_weights((7,), {(4, 7): places["a"], (): places["c"]}) is None
    assert sharing(None, ("model",), chain()) is None
