"""Constants and schedules of the theorems against their closed forms and against transcriptions."""

import dataclasses
import math

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from tests.support.cases import rng_of
from tests.support.compare import assert_same

import nestax as nx
from nestax import theory
from nestax.theory.theorems import Constants

ONES = Constants(3, 1.0, 1.0, 1.0, 1.0)
CALM = Constants(1, 0.1, 0.1, 0.0, 0.0)  # L_1 = 1, the least there is
TABLE = [
    ONES,
    CALM,
    Constants(1, 2.0, 0.5, 0.3, 0.1),
    Constants(2, 0.5, 3.0, 0.0, 2.0),
    Constants(2, 1.5, 0.2, 1.0, 0.5, mean_L_f=4.0),
    Constants(3, 0.7, 0.1, 0.2, 0.0, mean_L_J=2.0),
    Constants(4, 1.2, 0.6, 0.5, 3.0, 1.3, 0.9),
    Constants(6, 1.0, 0.01, 0.1, 0.1),
]
table = pytest.mark.parametrize("k", TABLE, ids=range(len(TABLE)))
refuses = lambda sentence: pytest.raises(nx.SettingError, match=sentence)


# Constants


def smoothness_as_the_paper_writes_it(k):
    return k.L_f ** (2 * k.levels - 1) * k.L_J * sum(k.L_f**-i for i in range(1, k.levels + 1))


@table
def test_constants(k):
    K, L_F = k.levels, smoothness_as_the_paper_writes_it(k)
    assert_same(k.smoothness, L_F)
    series = sum((2 * k.mean_L_f**2) ** (i - 1) for i in range(1, K + 1))
    movement = 2 * (k.mean_L_J**2 + k.mean_L_f**2) * (1 + 2 * K + 2 * K * k.sigma_f**2) * series
    noise = 2 * K * (k.sigma_J**2 + k.sigma_f**2)
    assert_same(k.L_1, max(1, K * k.L_f ** (2 * (K - 1)), K * L_F**2, noise, movement))
    assert len(k.C) == K - 1
    for i, C in enumerate(k.C, start=1):
        assert_same(C, k.L_f ** (K - 1) * k.L_J * sum(k.L_f**j for j in range(K - i)))
        assert 0 < C <= k.smoothness


@pytest.mark.erratum("E2", "E3")
def test_constants_by_hand():
    """Powers of two, so that every term can be computed on paper."""
    assert ONES.smoothness == 3
    assert ONES.C == (2, 1)
    assert ONES.L_1 == 364  # 2·2·13·7
    k = Constants(3, 2.0, 1.0, 0.0, 0.0)
    assert k.smoothness == 28
    assert k.C == (12, 4)
    assert k.L_1 == 5110  # 2·5·7·73, above K L_F² = 2352
    assert Constants(2, 1.0, 5.0, 0.0, 0.0).L_1 == 780  # 2·26·5·3
    assert Constants(1, 1.0, 0.0, 0.0, 100.0).L_1 == 20_000  # noise
    assert Constants(2, 1.0, 1.0, 0.0, 0.0).L_1 == 60
    assert Constants(2, 1.0, 1.0, 0.0, 0.0, mean_L_f=2.0).L_1 == 450  # mean squares enter, 2·5·5·9


@pytest.mark.parametrize("levels", [1, 2, 3, 4])
@pytest.mark.parametrize("slope", [0.5, 1.0, 2.0])
def test_smoothness_is_met_by_a_chain_of_parabolas(levels, slope):
    """Every level has slope L_f and curvature L_J = 3 where it is looked at: there F″ = L_F."""
    point, points = 0.2, []
    for _ in range(levels):
        points.append(point)
        point = slope**2 / 6

    def F(w):
        for at in points:
            w = 3 * (w - at + slope / 3) ** 2 / 2
        return w

    second = jax.grad(jax.grad(F))(0.2)
    assert_same(second, Constants(levels, slope, 3.0, 0.0, 0.0).smoothness)


@pytest.mark.erratum("E1")
def test_corrected_coefficients_bound_what_an_error_does():
    """u ↦ u²/2 after the identity: an error e of the value moves the gradient by e, and C_1 = 1.

    The sum as printed is empty for K = 2: it would deny that.
    """
    k = Constants(2, 1.0, 1.0, 0.0, 0.0)
    y, error = 0.3, 0.2
    moved = abs(jax.grad(lambda u: u**2 / 2)(y + error) - jax.grad(lambda u: u**2 / 2)(y))
    assert_same(moved, k.C[0] * error)


def test_mean_squared_constants_default_to_the_plain_ones():
    assert (ONES.mean_L_f, ONES.mean_L_J) == (1.0, 1.0)
    assert Constants(2, 1.0, 3.0, 0, 0, mean_L_J=4.0).mean_L_f == 1.0
    with pytest.raises(dataclasses.FrozenInstanceError):
        ONES.L_f = 2.0


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"levels": 0}, "levels must be a whole number of at least 1; got 0"),
        ({"levels": 2.0}, "levels must be a whole number"),
        ({"L_f": 0.0}, r"L_f must be positive and finite; got 0\.0"),
        ({"L_f": math.inf}, "L_f must be positive and finite; got inf"),
        ({"L_J": -1.0}, r"L_J must be at least 0 and finite; got -1\.0"),
        ({"sigma_f": -0.1}, r"sigma_f must be at least 0 and finite; got -0\.1"),
        ({"sigma_J": math.nan}, "sigma_J must be at least 0 and finite; got nan"),
        ({"mean_L_f": 0.9}, r"mean_L_f must be finite and at least L_f = 1, .* Jensen.*; got 0\.9"),
        ({"L_J": "one"}, "L_J must be one number, at least 0 and finite; got 'one'"),
        ({"mean_L_J": 0.5}, r"mean_L_J must be finite and at least L_J = 1, .* Jensen.*; got 0\.5"),
    ],
)
def test_impossible_constants_are_refused(settings, sentence):
    good = {"levels": 3, "L_f": 1.0, "L_J": 1.0, "sigma_f": 1.0, "sigma_J": 1.0}
    with refuses(sentence):
        Constants(**(good | settings))


def test_constants_beyond_floating_point_are_refused():
    with refuses("L_1 of these constants is so large .* scale the levels"):
        _ = Constants(20, 10.0, 1.0, 1.0, 1.0).L_1
    with refuses("L_3 of these constants is so large"):
        theory.L_3(ONES, 1e-60, 1e20)


# Theorem 1


@table
@pytest.mark.erratum("E14")
def test_theorem_1(k):
    s, L_1 = theory.theorem_1(k), k.L_1
    assert_same([s.c, s.a], [10 * L_1**2, (20 * L_1**3) ** 1.5])
    eta = lambda t: (s.a + t) ** (-1 / 3)
    for t in (1, 2, 17, 10**6):
        assert_same(s.lr(t - 1), eta(t))  # the step from w_t is the rule's count t − 1
        assert_same(s.beta(t), s.c * eta(t) ** 2)  # update t makes the estimate of iteration t + 1
    assert float(s.beta(1)) * 2 * L_1 <= 1 + 1e-12
    assert 2 * k.smoothness * float(s.lr(0)) <= 1


def test_theorem_1_fades_at_the_published_rates():
    s = theory.theorem_1(CALM)
    late, later = 10**8, 8 * 10**8
    assert_same(s.lr(later) / s.lr(late), 1 / 2, 1e-5)
    assert_same(s.beta(later) / s.beta(late), 1 / 4, 1e-5)


def test_schedules_in_single_precision_survive_an_offset_that_does_not_fit():
    k = Constants(6, 30.0, 1.0, 1.0, 1.0)
    s = theory.theorem_1(k)
    assert s.a > float(np.finfo(np.float32).max)
    with jax.enable_x64(False):
        values = [s.lr(jnp.asarray(5)), s.beta(jnp.asarray(5))]
        assert {v.dtype for v in values} == {jnp.dtype("float32")}
    assert_same(values, [s.a ** (-1 / 3), 1 / (2 * k.L_1)], 1e-5)


@pytest.mark.filterwarnings("ignore::nestax.ConvergenceWarning")
@pytest.mark.erratum("E6")
def test_counts_are_those_of_algorithm_1():
    """One level, SMVR as the paper writes it with η_t and β_t = c·η_{t−1}², against nestax's loop."""
    rows = rng_of("theory").normal(size=(40, 2))
    problem = nx.Problem([nx.Level(lambda w, r: (w @ r - 1) ** 2 / 2, rows)], jnp.ones(2))
    k = Constants(1, 0.5, 0.5, 0.0, 0.0)
    s = theory.theorem_1(k, a=2.0, c=1.5)
    method, T = nx.SMVR(beta=s.beta), 6
    result = nx.minimize(
        problem, method, optax.sgd(s.lr), steps=T, batch_size=1, init_batch_size=1, seed=4
    )
    xi = [
        nx.draw_batches(problem, method, jax.random.key(4), n, (1,))[0]["value"].draws for n in range(T)
    ]
    g = lambda w, t: (w @ np.ravel(xi[t - 1]) - 1) * np.ravel(xi[t - 1])
    eta = {t: (2.0 + t) ** (-1 / 3) for t in range(1, T + 1)}
    w = {1: np.ones(2)}
    v = {1: g(w[1], 1)}
    w[2] = w[1] - eta[1] * v[1]
    for t in range(2, T + 1):
        beta = 1.5 * eta[t - 1] ** 2
        v[t] = (1 - beta) * v[t - 1] + beta * g(w[t], t) + (1 - beta) * (g(w[t], t) - g(w[t - 1], t))
        w[t + 1] = w[t] - eta[t] * v[t]
    assert_same(result.w, w[T + 1])


def test_violated_hypotheses_of_theorem_1_are_named():
    with refuses(r"eta_1 <= 1/\(2 L_F\) = 0.1667, and eta_1 .* is 0.4642: raise a to 216, or leave it"):
        theory.theorem_1(ONES, a=9.0)
    theory.theorem_1(ONES, a=216.0, c=1.0)  # the advice works
    with refuses(r"beta_2 <= 1, and beta_2 = c\*eta_1\^2 is 2: lower c below 100, raise a"):
        theory.theorem_1(ONES, a=999.0, c=200.0)
    theory.theorem_1(ONES, a=999.0, c=99.999)
    with refuses("a must be at least 2, as the proof of Theorem 1 needs; got 1.5"):
        theory.theorem_1(CALM, a=1.5)
    with refuses("c must be positive; got 0"):
        theory.theorem_1(CALM, c=0)


@pytest.mark.erratum("E5")
def test_constant_schedule():
    assert theory.constant_schedule(1) == theory.ConstantSchedule(1, 1.0, 1.0, 1)
    for root in range(2, 60):  # whole cubes are not rounded up
        s = theory.constant_schedule(root**3)
        assert s.init_batch_size == root
        assert_same([s.lr, s.beta], [1 / root, 1 / root**2])
    assert theory.constant_schedule(1001).init_batch_size == 11
    theory.constant_schedule(216, ONES)
    with refuses(
        r"eta = T\^\(-1/3\) = 0.2 must be at most 1/\(2 L_F\) = 0.1667: raise the horizon to 216"
    ):
        theory.constant_schedule(125, ONES)
    with refuses("horizon must be a whole number"):
        theory.constant_schedule(0)


# Stages


def possible(k, mu, gap):
    """The gap, or the largest that a function with these constants can have."""
    return min(gap, k.L_f ** (2 * k.levels) / (2 * mu))


@table
@pytest.mark.parametrize(("mu", "eps"), [(1.0, 0.1), (0.03, 0.03), (20.0, 1e-3)])
@pytest.mark.erratum("E14")
def test_stages_have_their_closed_forms(k, mu, eps):
    gap, L_1 = possible(k, mu, 2.5), k.L_1
    stages = theory.lemma_222(k, mu, eps, gap)
    eps_1 = 8 * L_1 / mu
    assert len(stages) == math.ceil(math.log2(16 * L_1 / (mu * eps)))
    assert eps_1 / 2 ** (len(stages) - 1) <= eps < 2 * eps_1 / 2 ** (len(stages) - 1)
    noise = 4 * L_1 * k.levels * (k.sigma_f**2 + k.sigma_J**2)
    assert stages[0].steps == math.ceil(max(noise, 2 * math.sqrt(2 * L_1) * gap))
    assert_same([stages[0].beta, stages[0].lr], [1 / (2 * L_1), (2 * L_1) ** -0.5 / (4 * L_1)])
    for s, stage in enumerate(stages[1:], start=2):
        beta = 2.0 ** -(s - 2) / (8 * L_1)
        assert_same([stage.beta, stage.lr], [beta, math.sqrt(beta) / (4 * L_1)])
        second = 256 / math.sqrt(8) * L_1**1.5 * 2 ** ((s - 2) / 2) / mu
        assert_same(256 / math.sqrt(8), 90.5, 1e-3)
        closed = max(256 * L_1**2 * 2 ** (s - 2), second)
        assert closed * (1 - 1e-9) <= stage.steps <= closed * (1 + 1e-9) + 1


def test_either_length_of_a_stage_can_be_the_longer_one():
    first = theory.lemma_222(ONES, 1.0, 0.1, 0.5)[1].steps
    second = theory.lemma_222(CALM, 0.1, 0.1, 0.05)[1].steps
    assert abs(first - 256 * 364**2) <= 1
    assert second == math.ceil(256 / math.sqrt(8) / 0.1)


@table
@pytest.mark.erratum("E13")
def test_every_stage_halves_the_bound_that_the_proof_derives(k):
    """The three terms of the proof, at the stages' own numbers, add up to at most ε_s and μ ε_s."""
    mu, eps, L = 0.5, 0.05, k.L_1
    gap = possible(k, mu, 3.0)
    before, error = gap, k.levels * (k.sigma_f**2 + k.sigma_J**2)
    for s, stage in enumerate(theory.lemma_222(k, mu, eps, gap), start=1):
        T, beta, eta = stage.steps, stage.beta, stage.lr
        eps_s = 8 * L / mu / 2 ** (s - 1)
        assert 2 * k.smoothness * eta <= 1
        after = 4 * L * before / (mu * math.sqrt(beta) * T) + 4 * L * error / (mu * beta * T)
        assert after + 8 * L**2 * beta / mu <= eps_s * (1 + 1e-12)
        trackers = 4 * error / (beta * T) + 8 * beta * L + 8 * L * eta * before / (beta * T)
        assert trackers <= mu * eps_s * (1 + 1e-12)
        before, error = eps_s, mu * eps_s
    assert before <= eps


def test_a_coarse_target_and_an_exact_start_need_one_stage_of_one_step():
    (stage,) = theory.lemma_222(CALM, 40.0, 40.0, 0.0)
    assert_same(dataclasses.astuple(stage), (1, 1 / (4 * math.sqrt(2)), 0.5))


@pytest.mark.erratum("E12")
def test_stages_are_refused_where_the_rate_does_not_hold():
    with refuses("mu >= eps, and mu = 0.1 is less than eps = 0.2: lower eps to 0.1, or use theorem_3"):
        theory.lemma_222(ONES, 0.1, 0.2, 1.0)
    with refuses("mu must be positive; got 0"):
        theory.lemma_222(ONES, 0, 0.1, 1.0)
    with refuses("eps must be positive; got -1"):
        theory.lemma_222(ONES, 1.0, -1, 1.0)
    with refuses(r"gap must be at least 0, a bound on F\(w_1\) - F\*; got -1"):
        theory.lemma_222(ONES, 1.0, 0.1, -1)


@pytest.mark.erratum("E26")
def test_constants_that_no_function_has_are_refused():
    """F = μ/2·w² on [−r, r]: gradients up to μr, a gap up to μr²/2 = (μr)²/(2μ), which is the bound."""
    mu, r = 0.5, 2.0
    parabola = Constants(1, mu * r, mu, 0.1, 0.1)
    theory.lemma_222(parabola, mu, 0.1, mu * r**2 / 2)
    with refuses(r"below L_f\^\(2K\)/\(2 mu\) = 1, and gap is 1.001: .* or lower gap to 1 if it"):
        theory.lemma_222(parabola, mu, 0.1, 1.001)
    with refuses("no F has these constants"):
        theory.samples_needed(ONES, 0.1, gap=1.0, criterion="pl", mu=1.0)
    theory.theorem_3(ONES, 0.1, 0.2, 1.0)  # μ = 2.5 belongs to the regulariser, which L_f does not bound


@pytest.mark.erratum("E11")
def test_theorem_3_solves_the_regularised_problem_to_half_the_accuracy():
    mu, stages = theory.theorem_3(ONES, 0.1, 1.25, 2.0)
    assert_same(mu, 0.1 / 1.25**2)
    assert stages == theory.lemma_222(ONES, mu, 0.05, 2.0)
    mu, far = theory.theorem_3(ONES, 0.1, 10.0, 2.0)  # μ = 0.001 < ε/2, which the lemma allows
    assert_same(mu, 0.001)
    assert len(far) == math.ceil(math.log2(16 * 364 / (0.001 * 0.05)))
    with refuses("D must be positive; got 0"):
        theory.theorem_3(ONES, 0.1, 0, 1.0)
    with refuses("eps must be positive; got 0"):
        theory.theorem_3(ONES, 0, 1.0, 1.0)


@pytest.mark.erratum("E11")
def test_theorem_3_refuses_a_regulariser_that_needs_shorter_steps():
    with refuses(
        r"mu = eps/D\^2 = 3 .* lr = 0.1768 .* needs mu <= 2.728: lower eps below 2.728, or raise D"
    ):
        theory.theorem_3(CALM, 3.0, 1.0, 1.0)
    mu, stages = theory.theorem_3(CALM, 2.72, 1.0, 1.0)
    assert 2 * (CALM.smoothness + mu) * stages[0].lr <= 1


def test_halving():
    stages = theory.halving(100, 0.1, 0.4, 4)
    assert [s.steps for s in stages] == [100, 200, 400, 800]
    assert_same([s.beta for s in stages], [0.4, 0.2, 0.1, 0.05])
    assert_same([s.lr for s in stages], [0.1, 0.1 / math.sqrt(2), 0.05, 0.05 / math.sqrt(2)])
    published = theory.lemma_222(ONES, 1.0, 0.1, 0.5)[1:]
    assert all(type(s.steps) is int for s in stages)
    again = theory.halving(published[0].steps, published[0].lr, published[0].beta, len(published))
    assert_same([s.lr for s in again], [s.lr for s in published])
    assert_same([s.beta for s in again], [s.beta for s in published])
    assert_same([s.steps for s in again], [s.steps for s in published], 1e-7)
    for settings, sentence in [
        ((0, 0.1, 0.1, 2), "steps must be a whole number of at least 1; got 0"),
        ((10, 0.0, 0.1, 2), "lr must be positive; got 0.0"),
        ((10, 0.1, 1.1, 2), r"beta must be in \(0, 1\]; got 1.1"),
        ((10, 0.1, 0.1, 0), "stages must be a whole number of at least 1; got 0"),
        ((10, "fast", 0.1, 2), "lr must be one number, positive; got 'fast'"),
        ((10, 0.1, None, 2), r"beta must be one number, in \(0, 1\]; got None"),
        ((10, [0.1, 0.2], 0.1, 2), "lr must be one number"),
    ]:
        with refuses(sentence):
            theory.halving(*settings)


# Adaptive steps


@table
@pytest.mark.parametrize(("c_l", "c_u"), [(1.0, 1.0), (0.1, 0.5), (0.5, 20.0)])
def test_adaptive_constant(k, c_l, c_u):
    K = k.levels
    series = sum((2 * k.mean_L_f**2) ** (i - 1) for i in range(1, K + 1))
    squares = k.mean_L_J**2 + k.mean_L_f**2
    printed = 2 * (1 + 1 / c_l) * squares * (1 + 2 * K + 2 * K * k.sigma_f**2) * series
    noise = 2 * K * (k.sigma_J**2 + k.sigma_f**2)
    gradient = c_u * K * max(k.L_f ** (2 * (K - 1)), k.smoothness**2)
    actual = theory.L_3(k, c_l, c_u)
    if c_u <= 1:
        assert_same(actual, max(1, gradient, noise, printed))
    assert actual >= max(1, gradient, noise, printed) * (1 - 1e-12)
    # What the proof needs of it: movement of the inputs, η²c_u²‖v‖², is paid for by η c_l‖v‖²/4.
    assert 2 * squares * series * c_u**2 <= actual * c_l * (1 + 1e-12)


@pytest.mark.erratum("E4")
def test_the_printed_adaptive_constant_would_not_do():
    k, c_l, c_u = ONES, 0.5, 20.0
    printed = 2 * (1 + 1 / c_l) * 2 * 13 * 7
    assert 2 * 2 * 7 * c_u**2 > printed * c_l
    assert theory.L_3(k, c_l, c_u) == 2 * (1 + 400 / 0.5) * 2 * 13 * 7


@table
@pytest.mark.parametrize(("c_l", "c_u"), [(1.0, 1.0), (1 / 300, 1.0), (0.5, 20.0)])
def test_adaptive_schedules(k, c_l, c_u):
    s, L = theory.adaptive(k, c_l, c_u), theory.L_3(k, c_l, c_u)
    assert_same([s.c, s.a], [10 * L**2, (20 * L**3) ** 1.5])
    cap = c_l / (2 * c_u**2 * k.smoothness)
    for t in (1, 5, 10**5):
        eta = min((s.a + t) ** (-1 / 3), cap)
        assert_same(s.lr(t - 1), eta)
        assert_same(s.beta(t), s.c * eta**2)


@pytest.mark.erratum("E4")
def test_the_cap_on_adaptive_steps_can_be_active():
    k = Constants(1, 0.01, 0.01, 0.0, 0.0)
    s = theory.adaptive(k, 1 / 300, 1.0)
    assert s.a ** (-1 / 3) > 0.2
    assert_same([s.lr(0), s.lr(50)], [1 / 6, 1 / 6])
    assert_same([s.beta(1), s.beta(50)], [10 / 36, 10 / 36])
    assert float(s.lr(1000)) < 0.1


def test_without_curvature_there_is_no_cap_and_no_condition():
    flat = Constants(2, 1.0, 0.0, 0.0, 0.0)
    assert flat.smoothness == 0
    s = theory.adaptive(flat, 1.0, 1.0)
    assert_same(s.lr(0), (s.a + 1) ** (-1 / 3))
    assert_same(theory.theorem_1(flat, a=2.0, c=1.0).lr(0), 3 ** (-1 / 3))


@pytest.mark.parametrize("function", [theory.L_3, theory.adaptive])
def test_bounds_of_adaptive_steps_are_checked(function):
    with refuses("c_l must be positive; got 0"):
        function(ONES, 0, 1.0)
    with refuses(r"c_u must be at least c_l = 2; got 1\.0"):
        function(ONES, 2.0, 1.0)


# How much the theorems ask for


@table
@pytest.mark.erratum("E5")
def test_bound_of_theorem_1(k):
    T, gap = 1000, 1.7
    a = (20 * k.L_1**3) ** 1.5
    c_0, eta_0 = 4 * k.L_1, a ** (-1 / 3)
    M = 2 * gap + 2 * k.levels * (k.sigma_f**2 + k.sigma_J**2) / (c_0 * eta_0)
    M += 100 * k.L_1**4 * math.log(T + 1)
    assert_same(theory.theorem_1_bound(k, T, gap), math.sqrt(M) * (a + T) ** (1 / 6) / math.sqrt(T))


@pytest.mark.parametrize(("eps", "gap"), [(0.7, 0.0), (0.3, 5.0), (3.0, 1e4), (1e6, 1.0)])
def test_steps_to_a_stationary_point_are_the_least_the_bound_allows(eps, gap):
    needed = theory.samples_needed(CALM, eps, gap=gap)
    bound = lambda T: theory.theorem_1_bound(CALM, T, gap)
    assert bound(needed.steps) <= eps
    assert needed.steps == 1 or bound(needed.steps - 1) > eps
    assert needed.samples == needed.steps


def test_three_levels_with_all_constants_one():
    assert 2.9e13 < theory.theorem_1(ONES).a < 3.1e13
    assert theory.theorem_1_bound(ONES, 10**14, 1.0) > 100  # when ‖∇F‖ ≤ 1 anyhow
    stationary = theory.samples_needed(ONES, 0.1, gap=1.0)
    assert 9e23 < stationary.steps < 1e24
    assert stationary.samples == 3 * stationary.steps
    convex = theory.samples_needed(ONES, 0.1, gap=1.0, criterion="convex", D=1.0)
    assert 3.5e13 < convex.steps < 3.6e13
    assert 1.0e14 < convex.samples < 1.1e14


def test_numbers_in_single_precision_do_not_overflow():
    k = Constants(3, *(np.float32([6.5, 10.5, 5.0, 16.0, 16.0, 27.0])))
    assert k == Constants(3, 6.5, 10.5, 5.0, 16.0, 16.0, 27.0)
    needed = theory.samples_needed(k, 0.5, gap=1.0)
    assert theory.samples_needed(k, np.float32(0.5), gap=np.float32(1.0)) == needed
    assert needed.steps > 1e38


def test_samples_of_stages_leave_out_their_starts():
    stages = theory.lemma_222(ONES, 1.0, 0.1, 0.5)
    needed = theory.samples_needed(ONES, 0.1, gap=0.5, criterion="pl", mu=1.0)
    assert needed.steps == sum(s.steps for s in stages)
    assert needed.samples == 3 * (stages[0].steps + sum(s.steps - 1 for s in stages[1:]))
    _, stages = theory.theorem_3(ONES, 0.1, 1.0, 1.0)
    needed = theory.samples_needed(ONES, 0.1, gap=1.0, criterion="convex", D=1.0)
    assert needed.steps == sum(s.steps for s in stages)


@pytest.mark.parametrize(
    ("criterion", "more", "power"),
    [("stationary", {}, 3), ("pl", {"mu": 1.0}, 1), ("convex", {"D": 1.0}, 2)],
)
def test_orders_in_eps(criterion, more, power):
    """Over factors of 2^10 in ε; the stationary one has a logarithm on top."""
    need = lambda eps: theory.samples_needed(ONES, eps, gap=0.5, criterion=criterion, **more).steps
    order = math.log2(need(2.0**-20) / need(2.0**-10)) / 10
    assert power - 0.01 < order < power + (0.1 if criterion == "stationary" else 0.01)


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"criterion": "pl"}, "criterion 'pl' needs mu=; it belongs to 'pl'"),
        ({"criterion": "convex"}, "criterion 'convex' needs D=; it belongs to 'convex'"),
        ({"mu": 1.0}, "criterion 'stationary' does not take mu=; it belongs to 'pl'"),
        ({"criterion": "pl", "mu": 1.0, "D": 1.0}, "criterion 'pl' does not take D="),
        ({"criterion": "smooth"}, "criterion must be one of stationary, pl, convex; got 'smooth'"),
        ({"criterion": "pl", "mu": 0.05}, "mu >= eps"),
        ({"gap": -1.0}, "gap must be at least 0"),
        ({"eps": 0.0}, "eps must be positive"),
    ],
)
def test_samples_needed_refuses(settings, sentence):
    with refuses(sentence):
        theory.samples_needed(ONES, **({"eps": 0.1, "gap": 1.0} | settings))
