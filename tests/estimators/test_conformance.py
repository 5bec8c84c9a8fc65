"""Every method of the library passes the suite that is offered for methods of one's own."""

import equinox as eqx
import pytest

import nestax as nx
from nestax.estimators.registry import classes
from nestax.parts.estimator import Calls

VARIANTS = {
    "SCSC single-point": nx.SCSC(mode="single-point"),
    "AdjointSMVR fresh": nx.AdjointSMVR(mode="fresh"),
    "PMVR fresh": nx.PMVR(mode="fresh"),
    "PMM of means": nx.PMM(per_draw=False),
    "PerBlock AdjointSMVR": nx.PerBlock(nx.AdjointSMVR(mode="fresh")),
}
#: Methods that share nearly all of their code with another one here.
SIBLINGS = ("ASCGD", "MLNASA", "PMVR", "RECOVER", "SARAH", "SpiderBoost", "TSCGD")


def slowly(name):
    return pytest.param(name, marks=pytest.mark.slow)


@pytest.mark.parametrize(
    "name", [*(slowly(n) if n in SIBLINGS else n for n in classes()), *map(slowly, VARIANTS)]
)
def test_conforms(name):
    assert len(nx.testing.check_method(VARIANTS.get(name) or getattr(nx, name))) == 5


class Forgetful(nx.SCSC):
    """Does not move values into their range."""

    def update(self, problem, w, batches, state):
        levels = tuple(level.replace(project=None) for level in problem.levels)
        return super().update(eqx.tree_at(lambda p: p.levels, problem, levels), w, batches, state)


class Late(nx.SMVR):
    lag = 1


class Cheap(nx.SMVR):
    passes = {"value": Calls(1, 1)}  # noqa: RUF012


class Growing(nx.Plain):
    def update(self, problem, w, batches, state):
        estimate, state = super().update(problem, w, batches, state)
        return estimate, (state, state)


class Rounded(nx.SCSC):
    def update(self, problem, w, batches, state):
        estimate, state = super().update(problem, w, batches, state)
        return estimate, eqx.tree_at(lambda s: s.count, state, state.count.astype(float))


class Biased(nx.SMVR):
    def update(self, problem, w, batches, state):
        estimate, state = super().update(problem, w, batches, state)
        return eqx.tree_at(lambda e: e.grad, estimate, 1.1 * estimate.grad), state


class Nowhere(nx.SMVR):
    def trackers(self, state):
        return super().trackers(state)._replace(w=None)


class Branching(nx.Plain):
    def update(self, problem, w, batches, state):
        if estimate_is_large(state):
            return self.init(problem, w, batches)
        return super().update(problem, w, batches, state)


def estimate_is_large(state):
    return bool(state.w[0] > 1)


@pytest.mark.parametrize(
    ("method", "sentence"),
    [
        (Forgetful(0.1), "Forgetful lets the value of level 'affine' leave its range by"),
        (Late(0.1), "Late declares lag = 1, .* but trackers say that it belongs to others"),
        (Cheap(0.1), "Cheap evaluates level 'affine' at 2 points, with derivatives at 2; .* declare 1"),
        (Nowhere(0.1), "Nowhere: trackers.state..w must be the weights .*; got None"),
        (Growing(), "Growing.update .* returns another structure than init"),
        (Rounded(0.1), r"Rounded.update .* at \[1\].count, where init returns .*int32"),
        (Biased(0.1), "Biased: without noise and with resting weights the gradient is off by"),
        (Branching(), "Branching: keeps_its_structure met TracerBoolConversionError"),
        (
            nx.Exact(lr=1e-4),
            "Exact ends at a gap of .* with batches of 4 .* nx.steps.Descent",
        ),
    ],
)
def test_what_is_wrong_gets_one_sentence(method, sentence):
    with pytest.raises(AssertionError, match=sentence):
        nx.testing.check_method(method, samples=20_000)


def test_only_methods_are_checked():
    with pytest.raises(TypeError, match="takes an estimator or its class"):
        nx.testing.check_method("SMVR")
