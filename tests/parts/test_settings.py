"""Settings show themselves as they would be typed."""

import jax
import jax.numpy as jnp
import optax
import pytest

import nestax as nx


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
