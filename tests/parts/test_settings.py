"""Settings show themselves as they would be typed; schedules are rounded at their end."""

import jax
import jax.numpy as jnp
import optax
import pytest
from tests.support.compare import assert_same

import nestax as nx
from nestax.parts.settings import Schedule


@pytest.mark.parametrize(
    ("made", "words"),
    [
        (lambda: nx.SMVR(), "SMVR()"),
        (lambda: nx.SnapshotSMVR(), "SnapshotSMVR()"),
        (lambda: nx.SMVR(beta=0.1, radius=5), "SMVR(beta=0.1, radius=5)"),
        (lambda: nx.SMVR(beta=jnp.float32(0.1), ball="spectral"), "SMVR(beta=0.1, ball='spectral')"),
        (lambda: nx.SMVR(beta=[0.1, 0.25]), "SMVR(beta=[0.1, 0.25])"),
        (lambda: nx.PerBlock(nx.SMVR(beta=0.2)), "PerBlock(estimator=SMVR(beta=0.2))"),
        (lambda: nx.steps.Normalized(lr=0.1), "Normalized(lr=0.1)"),
    ],
)
def test_numbers_are_written_as_people_read_them(made, words):
    assert repr(made()) == words


def test_what_is_not_known_yet_is_written_as_its_shape():
    seen = []
    jax.vmap(lambda beta: seen.append(repr(nx.SMVR(beta=beta))))(jnp.ones(3))
    assert seen[0].startswith("SMVR(beta=f")
    assert "<function" in repr(nx.SMVR(beta=optax.constant_schedule(0.1)))


FALLING = {
    "of the count": lambda count: 0.3 / (1 + count / 7),
    "of the horizon": lambda count, horizon: (1 + count / 7) ** -0.3 * horizon**-0.1,
    "by Optax": optax.exponential_decay(0.3, 7, 0.5),
}


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
@pytest.mark.parametrize("name", FALLING)
def test_schedules_of_narrow_weights_are_computed_in_full_and_rounded(name, dtype):
    """Also where their numbers have become arrays, as in every run."""
    step = nx.steps.Descent(Schedule(FALLING[name], scale=0.1))
    count = jnp.asarray(5, jnp.int32)
    ready = {
        kind: step.ready(20, dtype) for kind, step in {"": step, "lifted": lifted(step, dtype)}.items()
    }
    wide = step.ready(20, "float64").lr(count)
    for rule in ready.values():
        assert rule.lr(count).dtype == dtype
        assert_same(rule.lr(count).astype(float), wide, 4 * float(jnp.finfo(dtype).eps))
    assert ready[""].lr(count) == ready["lifted"].lr(count)


def lifted(step, dtype):
    return step.lifted(jax.ShapeDtypeStruct((), dtype), dict)
