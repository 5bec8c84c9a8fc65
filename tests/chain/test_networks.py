"""What networks bring along: low precision, checkpoints, random keys, and state that is no weight."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import nestax as nx

ROWS = np.random.default_rng(0).normal(size=(64, 6)).astype(np.float32)
W0 = {
    "inner": jnp.asarray(np.random.default_rng(1).normal(size=(6, 8)) / 3, jnp.float32),
    "outer": jnp.full(8, 0.1, jnp.float32),
}


def squares(w, row):
    return (jnp.tanh(row @ w["inner"]) @ w["outer"] - row[0]) ** 2


def in_bfloat16(w, row):
    """Everything in half precision but the value, as mixed precision has it."""
    short = jax.tree.map(lambda x: x.astype(jnp.bfloat16), (w, row))
    return squares(*short).astype(jnp.float32)


def descend(fn, estimator, data=ROWS, **options):
    problem = nx.Problem([nx.Level(fn, data, name="loss"), nx.Level(jnp.log1p, name="log")], W0)
    return nx.minimize(
        problem, estimator, optax.adam(0.01), steps=40, batch_size=8, record=["value"], **options
    )


METHODS = [nx.Plain(), nx.SCSC(0.5), nx.AdjointSMVR(0.5), nx.SMVR(0.5), nx.SelfTuning()]


@pytest.mark.parametrize("estimator", METHODS, ids=lambda e: type(e).__name__)
def test_levels_in_bfloat16_leave_weights_and_trackers_in_float32(estimator):
    result = descend(in_bfloat16, estimator)
    kinds = {str(x.dtype) for x in jax.tree.leaves(result.carry.lane)}
    assert "bfloat16" not in kinds
    assert {str(x.dtype) for x in jax.tree.leaves(result.w)} == {"float32"}
    full = descend(squares, estimator)
    assert not np.array_equal(full.records["value"], result.records["value"])
    # Values begin at 0.7, and bfloat16 rounds by 2⁻⁹ of what it rounds.
    np.testing.assert_allclose(result.records["value"], full.records["value"], rtol=0.02, atol=0.01)


@pytest.mark.parametrize("estimator", METHODS, ids=lambda e: type(e).__name__)
def test_jax_checkpoint_inside_a_level_changes_nothing_but_rounding(estimator):
    again = descend(jax.checkpoint(squares), estimator)
    for one, other in zip(
        jax.tree.leaves(again.w), jax.tree.leaves(descend(squares, estimator).w), strict=True
    ):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-6)


def test_an_output_in_bfloat16_is_refused():
    with pytest.raises(nx.ProblemError, match="returns bfloat16 where w is float32: every level must"):
        descend(lambda w, row: in_bfloat16(w, row).astype(jnp.bfloat16), nx.Plain())


def test_a_sampler_brings_random_keys_for_dropout():
    rows = jnp.asarray(ROWS)

    def draw(key):
        which, mask = jax.random.split(key)
        return rows[jax.random.randint(which, (), 0, len(rows))], mask

    def dropped(w, draw):
        row, key = draw
        hidden = jnp.tanh(row @ w["inner"])
        kept = jnp.where(jax.random.bernoulli(key, 0.5, hidden.shape), 2 * hidden, 0)
        return (kept @ w["outer"] - row[0]) ** 2

    for estimator in METHODS:
        values = descend(dropped, estimator, nx.Sampler(draw)).records["value"]
        assert np.isfinite(values).all()
        assert len(set(values.tolist())) == len(values)  # another mask, another value


class TraceContextError(Exception):
    """As that of Flax, by name."""


def test_state_that_a_function_changes_is_refused_with_a_way_out():
    def counting(w, row):
        raise TraceContextError("Cannot mutate RngCount from a different trace level")

    with pytest.raises(
        nx.ProblemError, match=r"level 'loss' changes state .* random key \(an nx.Sampler"
    ):
        descend(counting, nx.Plain())


def test_state_that_changes_only_in_a_batch_is_refused_as_well():
    calls = []

    def later(w, row):
        calls.append(row)
        if len(calls) > 1:
            raise TraceContextError("Cannot mutate BatchStat from a different trace level")
        return squares(w, row)

    with pytest.raises(nx.ProblemError, match=r"level 'loss' changes state while"):
        descend(later, nx.Plain())


def problem_from(w0):
    return nx.Problem([nx.Level(lambda w, row: jnp.sum(row), ROWS)], w0)


@pytest.mark.parametrize(
    ("w0", "words"),
    [
        (
            {"w": jnp.ones(2), "key": jax.random.key(0)},
            r"got float.*, key<fry>\..*Pass the weights alone",
        ),
        (jax.random.key(0), r"got key<fry>\. Write 1\.0"),
        (
            {"w": jnp.ones(2), "axis": "batch"},
            r"w0 holds 'batch', which is no number\. Pass the weights",
        ),
        (
            eqx.nn.Sequential([eqx.nn.Linear(2, 2, key=jax.random.key(0)), eqx.nn.Dropout(0.5)]),
            r"got bool, float.*eqx\.partition\(model, eqx\.is_inexact_array\)",
        ),
    ],
    ids=["a key besides", "a key", "a word", "Equinox's dropout"],
)
def test_what_is_no_weight_is_refused_with_a_way_out(w0, words):
    with pytest.raises(nx.ProblemError, match=words):
        problem_from(w0)
