"""The adaptive steps written out in NumPy, entry by entry, from their formulas."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from tests.support.cases import rng_of
from tests.support.compare import assert_same, flat

import nestax as nx
from nestax.steps.adaptive import adabound_type, adagrad_mean, adam_type, amsgrad_type

STEPS = 5
GRADS = rng_of("adaptive").normal(size=(STEPS, 5)) * np.array([3.0, 1.0, 0.2, 1.0, 0.0])
LR, BETA, DELTA, C_L, C_U = 0.3, 0.2, 0.05, 1.2, 2.4


def tree(x):
    return {"a": jnp.asarray(x[:2]), "b": jnp.asarray(x[2:]).reshape(1, 3)}


def free(w):
    """A problem without constraint, whose steps from zero are the changes that a rule makes."""
    total = lambda w, x: x * sum(jnp.sum(part) for part in jax.tree.leaves(w))
    return nx.Problem([nx.Level(total, jnp.ones(2, w["a"].dtype))], w)


def changes_of(rule, grads=GRADS):
    zero = jax.tree.map(jnp.zeros_like, tree(grads[0]))
    problem = free(zero)
    rule = rule.ready(STEPS, problem.dtype)
    state, path = rule.init(zero), []
    for v in grads:
        w, state = rule.update(problem, zero, tree(v), {}, state)
        path.append(flat(w))
    return np.stack(path)


def updates_of(rule, grads=GRADS):
    """Of nestax or of Optax."""
    if isinstance(rule, nx.steps.AbstractStep):
        return changes_of(rule, grads)
    state, path = rule.init(tree(grads[0])), []
    for v in grads:
        updates, state = rule.update(tree(v), state)
        path.append(flat(updates))
    return np.stack(path)


# h_1, …, h_T of each rule. The average is written out as a sum with weights β′(1 − β′)^{t−s}.


def averages(bias_correction, beta=BETA):
    out = []
    for t in range(1, STEPS + 1):
        weights = np.array([beta * (1 - beta) ** (t - s) for s in range(1, t + 1)])
        total = 1 - (1 - beta) ** t if bias_correction else 1.0
        out.append(weights @ GRADS[:t] ** 2 / total)
    return np.stack(out)


def in_numpy(h, lr=LR):
    return -lr * GRADS / (np.sqrt(h) + DELTA)


@pytest.mark.parametrize("bias_correction", [True, False])
def test_adam(bias_correction):
    actual = updates_of(adam_type(LR, BETA, DELTA, bias_correction))
    assert_same(actual, in_numpy(averages(bias_correction)))


@pytest.mark.parametrize("bias_correction", [True, False])
def test_amsgrad(bias_correction):
    h = np.maximum.accumulate(averages(bias_correction), axis=0)
    assert_same(updates_of(amsgrad_type(LR, BETA, DELTA, bias_correction)), in_numpy(h))
    assert (h != averages(bias_correction)).any()  # the maximum matters on these gradients


@pytest.mark.parametrize("bias_correction", [True, False])
def test_adabound(bias_correction):
    average = averages(bias_correction)
    low, high = 1 / C_U**2, 1 / C_L**2
    assert (average < low).any()
    assert (average > high).any()
    assert ((low < average) & (average < high)).any()
    actual = updates_of(adabound_type(LR, BETA, C_L, C_U, DELTA, bias_correction))
    assert_same(actual, in_numpy(np.clip(average, low, high)))


def test_adagrad_is_a_mean_of_squares_not_their_sum():
    h = np.stack([np.mean(GRADS[:t] ** 2, axis=0) for t in range(1, STEPS + 1)])
    assert_same(updates_of(adagrad_mean(LR, DELTA)), in_numpy(h))
    constant = updates_of(adagrad_mean(LR, DELTA), np.full((4, 5), 2.0))
    assert_same(constant, np.full((4, 5), -LR * 2 / (2 + DELTA)))  # a sum would shrink it


def test_numbers_by_hand():
    """Two steps of one weight, v = 3 and then 4, computed on paper."""
    grads = np.array([[3.0] * 5, [4.0] * 5])
    first = lambda rule: updates_of(rule, grads)[:, 0]
    assert_same(first(adagrad_mean(1.0, 1.0)), [-3 / 4, -4 / (np.sqrt(12.5) + 1)])
    assert_same(
        first(adam_type(1.0, 0.5, 1.0, False)), [-3 / (np.sqrt(4.5) + 1), -4 / (3.2015621187 + 1)], 1e-9
    )
    assert_same(first(adam_type(1.0, 0.5, 1.0)), [-3 / 4, -4 / (np.sqrt(41 / 3) + 1)])
    assert_same(first(amsgrad_type(1.0, 0.5, 1.0)), [-3 / 4, -4 / (np.sqrt(41 / 3) + 1)])
    assert_same(first(adabound_type(1.0, 0.5, 0.5, 2.0, 1.0)), [-3 / (2 + 1), -4 / (2 + 1)])


def test_adam_is_optax_adam_without_its_first_average():
    assert_same(updates_of(adam_type(LR, BETA, DELTA)), updates_of(optax.adam(LR, 0.0, 1 - BETA, DELTA)))


@pytest.mark.parametrize(
    ("make", "named"),
    [
        (adagrad_mean, {}),
        (adam_type, {"beta": 0.01}),
        (amsgrad_type, {"beta": 0.01}),
        (adabound_type, {"beta": 0.01, "c_l": 0.01, "c_u": 100.0}),
    ],
)
def test_numbers_that_nobody_sets(make, named):
    """With small gradients, where all of them count; the lower bound of AdaBound has large ones."""
    grads = np.outer([1.0, 3.0, 2.0], [1e-8, 1e-7, 1.0, 1e3, 0.0])
    assert_same(updates_of(make(1.0), grads), updates_of(make(1.0, delta=1e-8, **named), grads))


def test_without_correction_the_first_step_is_too_long():
    ratio = (
        updates_of(adam_type(LR, 0.01, 1e-12, False))[0, :4]
        / updates_of(adam_type(LR, 0.01, 1e-12))[0, :4]
    )
    assert_same(ratio, np.full(4, 10.0), 1e-9)


@pytest.mark.parametrize("make", [adagrad_mean, adam_type, amsgrad_type, adabound_type])
def test_learning_rates_may_be_schedules(make):
    fading = lambda count: LR / (1 + count)
    expected = updates_of(make(LR, delta=DELTA)) / np.arange(1, STEPS + 1)[:, None]
    assert_same(updates_of(make(fading, delta=DELTA)), expected)


def test_the_averaging_rate_may_be_a_schedule_and_is_corrected_by_its_own_weights():
    rates = np.array([0.5, 0.1, 0.9, 0.3, 0.2])
    h, rest, expected = np.zeros(5), 1.0, []
    for rate, v in zip(rates, GRADS, strict=True):
        h, rest = (1 - rate) * h + rate * v**2, rest * (1 - rate)
        expected.append(-LR * v / (np.sqrt(h / (1 - rest)) + DELTA))
    rule = adam_type(LR, lambda count: jnp.asarray(rates)[count], DELTA)
    assert_same(updates_of(rule), np.stack(expected))


@pytest.mark.erratum("E22")
def test_adabound_keeps_the_factor_between_its_bounds_whatever_the_gradient():
    grads = np.geomspace(1e-6, 1e6, 5)[None] * np.ones((3, 1))
    factor = -updates_of(adabound_type(1.0, 0.01, C_L, C_U, 1e-12), grads) / grads
    assert_same([factor.min(), factor.max()], [C_L, C_U], 1e-9)


@pytest.mark.parametrize(
    "make",
    [
        adagrad_mean,
        adam_type,
        amsgrad_type,
        adabound_type,
        nx.steps.Adam,
        nx.steps.AMSGrad,
        nx.steps.AdaGrad,
        nx.steps.RMSprop,
    ],
)
def test_single_precision_stays_single_and_one_trace_serves_a_scan(make):
    w = jax.tree.map(lambda x: x.astype(jnp.float32), tree(GRADS[0]))
    problem = free(w)
    rule = make(lambda count: jnp.asarray(LR, "float64") / (1 + count)).ready(3, problem.dtype)
    step = lambda carry, _: (rule.update(problem, carry[0], w, {}, carry[1]), None)
    (w, last), _ = jax.lax.scan(step, (w, rule.init(w)), length=3)
    assert {x.dtype for x in jax.tree.leaves(w)} == {jnp.dtype("float32")}
    assert int(last.count) == 3


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        (nx.steps.Adam(LR, 0.8, 0.95, DELTA), optax.adam(LR, 0.8, 0.95, DELTA)),
        (nx.steps.Adam(LR), optax.adam(LR)),
        (nx.steps.AMSGrad(LR, 0.8, 0.95, DELTA), optax.amsgrad(LR, 0.8, 0.95, DELTA)),
        (nx.steps.AMSGrad(LR), optax.amsgrad(LR)),
        (nx.steps.AdaGrad(LR, 0.2, DELTA), optax.adagrad(LR, 0.2, DELTA)),
        (nx.steps.AdaGrad(LR), optax.adagrad(LR)),
        (nx.steps.RMSprop(LR, 0.3, DELTA), optax.rmsprop(LR, 0.7, DELTA)),
        (nx.steps.RMSprop(LR), optax.rmsprop(LR)),
    ],
    ids=lambda rule: type(rule).__name__,
)
def test_on_free_weights_they_are_those_of_optax(ours, theirs):
    grads = GRADS + 0.1  # Optax makes no step of a gradient that was always zero
    assert_same(updates_of(ours, grads), updates_of(theirs, grads), 1e-6)


def test_runs_inside_minimize():
    problem = nx.problems.convex_chain(levels=2)
    start = float(problem.value(problem.w0))
    result = nx.minimize(problem, nx.SMVR(beta=0.1), adam_type(0.02), steps=100, batch_size=4)
    assert float(problem.value(result.w)) < start


@pytest.mark.parametrize("make", [adagrad_mean, adam_type, amsgrad_type, adabound_type])
def test_settings_out_of_range_are_refused(make):
    with pytest.raises(nx.SettingError, match=r"lr must be positive; got 0\."):
        make(0)
    with pytest.raises(nx.SettingError, match=r"delta must be positive; got 0\."):
        make(0.1, delta=0)
    if make is not adagrad_mean:
        for beta in (0, 1.5):
            with pytest.raises(nx.SettingError, match=rf"beta must be in \(0, 1\]; got {beta}"):
                make(0.1, beta=beta)
        make(0.1, beta=1)


def test_bounds_in_the_wrong_order_are_refused():
    with pytest.raises(nx.SettingError, match=r"c_l must be positive; got 0\."):
        adabound_type(0.1, c_l=0)
    with pytest.raises(nx.SettingError, match=r"c_u must be at least c_l = 2; got 1\."):
        adabound_type(0.1, c_l=2, c_u=1)
