"""Where one method is another: with one level, without noise, without memory, between restarts."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tests.support.cases import bent_two_levels, noisy, quiet
from tests.support.compare import assert_same, flat
from tests.support.drive import FIRST_BATCH, STEPS, drive

import nestax as nx


def same(one, other):
    assert_same(one.weights, other.weights)
    assert_same(one.grads, other.grads)


def run(name, estimator):
    case = noisy(name)
    return drive(case.problem, estimator, case.lr)


# Without memory


@pytest.mark.parametrize("name", ["three_levels", "portfolio"])
@pytest.mark.parametrize(
    "estimator", [nx.SCSC(1.0), nx.SCSC(1.0, "single-point"), nx.PMM(1.0, per_draw=False)]
)
def test_beta_one_is_plain(name, estimator):
    same(run(name, estimator), run(name, nx.Plain()))


def test_scgd_with_beta_one_is_plain():
    same(run("two_levels", nx.SCGD(1.0)), run("two_levels", nx.Plain()))


# One level


@pytest.mark.parametrize("estimator", [nx.SCSC(0.3), nx.SCGD, nx.PMM(0.3)])
def test_one_level_leaves_only_what_a_method_does_to_the_gradient(estimator):
    """SCSC is plain descent there; two-level methods refuse; PMM is a moving average."""
    problem = noisy("one_level").problem
    if estimator is nx.SCGD:
        with pytest.raises(nx.ProblemError, match=r"SCGD is made for two levels .* has 1: use TSCGD"):
            nx.minimize(problem, estimator(), steps=1)
    elif isinstance(estimator, nx.SCSC):
        same(run("one_level", estimator), run("one_level", nx.Plain()))
    else:
        made, grads = run("one_level", estimator), None
        level = noisy("one_level").levels[0]
        for t, draws in enumerate(made.draws):
            sampled = level.J(flat(made.w[t]), draws[0]["value"])[0]
            grads = sampled if t == 0 else 0.7 * grads + 0.3 * sampled
            assert_same(made.grads[t], grads)


def test_nested_spider_on_one_level_is_spider():
    settings = {"period": 5, "restart_batch": 7}
    same(run("one_level", nx.NestedSPIDER(**settings)), run("one_level", nx.SPIDER(**settings)))
    same(run("one_level", nx.SPIDER(**settings)), run("one_level", nx.SpiderBoost(**settings)))


def test_storm_is_smvr_at_the_rates_that_storm_chooses():
    storm = nx.STORM(c=10.0, lr=0.1)
    made = run("one_level", storm)
    rates = jnp.asarray([estimate.aux["rate"] for estimate in made.estimate])
    betas = jnp.minimum(1, 10.0 * rates**2)
    same(made, run("one_level", nx.SMVR(lambda t: betas[t - 1])))
    assert 0 < betas.min() < 0.5


# Two levels


def test_tscgd_of_two_levels_is_scgd():
    """In schedules and steps; its derivatives have draws of their own, which are all the same here."""
    case = quiet("two_levels")
    made = drive(case.problem, nx.TSCGD(exact_levels=False))
    same(made, drive(case.problem, nx.SCGD()))
    plain = drive(case.problem, nx.Plain(), nx.TSCGD().published_step(case.problem))
    assert np.abs(made.grads - plain.grads).max() > 1e-3


# Two levels, the outer one without noise


def test_cover_is_smvr_without_a_ball():
    case = bent_two_levels(outer_noisy=False)
    same(drive(case.problem, nx.COVER(0.3), case.lr), drive(case.problem, nx.SMVR(0.3), case.lr))


def test_recover_is_cover_in_its_first_stage():
    case = bent_two_levels(outer_noisy=False)
    recover, cover = nx.RECOVER(0.3, first_stage=STEPS + 1), nx.COVER(0.3)
    same(drive(case.problem, recover, case.lr), drive(case.problem, cover, case.lr))


@pytest.mark.parametrize("estimator", [nx.CIVR, nx.SARAHC])
def test_civr_and_sarahc_are_nested_spider(estimator):
    case = bent_two_levels(outer_noisy=False)
    settings = {"period": 5, "restart_batch": 7}
    one = drive(case.problem, estimator(**settings), case.lr)
    same(one, drive(case.problem, nx.NestedSPIDER(**settings), case.lr))


# Restarts


@pytest.mark.parametrize("name", ["three_levels", "portfolio"])
def test_nested_spider_between_restarts_is_smvr_with_beta_zero(name):
    spider = run(name, nx.NestedSPIDER(period=STEPS + 1, restart_batch=FIRST_BATCH))
    never_forgets = eqx.tree_at(lambda m: m.beta, nx.SMVR(0.5), jnp.asarray(0.0))
    same(spider, run(name, never_forgets))


def test_a_restart_forgets_everything():
    """At a restart Nested-SPIDER is plain evaluation of the restart's draws."""
    made = run("three_levels", nx.NestedSPIDER(period=4, restart_batch=7))
    problem = noisy("three_levels").problem
    for t in (0, 4, 8, 12):
        plain, _ = nx.Plain().init(problem, made.w[t], made.batches[t])
        assert_same(made.grads[t], plain.grad)
        assert len(made.draws[t][0]["value"]) == 7


# Without noise


@pytest.mark.parametrize("name", ["one_level", "two_levels"])
def test_nlasg_with_tau_one_lags_by_one_step(name):
    """Where the inner levels are affine, so that their linear correction is exact."""
    case = quiet(name)
    made = drive(case.problem, nx.NLASG(1.0), case.lr)
    exact = [flat(case.problem.value_and_grad(w)[1]) for w in made.w]
    assert_same(made.grads[1:], exact[:-1])


def test_nlasg_tracks_affine_levels_exactly():
    """For every tau, as long as the levels before are exact."""
    case = quiet("two_levels")
    made = drive(case.problem, nx.NLASG(0.3), case.lr)
    exact = [flat(case.problem.level_values(w)[0]) for w in made.w]
    assert_same([flat(state.value[0]) for state in made.state], exact)
    average = drive(case.problem, nx.MLNASA(0.3), case.lr)
    assert np.abs(flat(average.state[-1].value[0]) - exact[-1]).max() > 1e-3


def test_ssd_is_faster_than_descent_on_a_smooth_convex_chain():
    """Deterministic, three levels: gaps of 200 and 800 steps against gradient descent's."""
    problem = nx.problems.convex_chain(3, noise=0.0, dimension=8, seed=3)
    facts = {"batch_size": 1, "init_batch_size": 1, "record": ["gap"], "record_every": 200}
    ssd = nx.minimize(problem, nx.SSD(noise=0.0, lr=0.2), steps=800, **facts).records["gap"]
    assert ssd[1] < 1e-2 * ssd[0]
    assert ssd[4] < ssd[1] / 8  # at least like 1/t²


# Refusals

SAMPLED = nx.Level(
    lambda w, x: (w - x) @ (w - x), nx.Sampler(lambda key: jax.random.normal(key, (2,))), name="loss"
)


@pytest.mark.parametrize(
    ("levels", "estimator", "sentence"),
    [
        ([SAMPLED], nx.SARAH(), "SARAH averages over the population, .* Sampler .*: use SMVR"),
        ([SAMPLED], nx.PMFS(), "PMFS averages over the population, .*: use PMVR instead"),
        ([SAMPLED], nx.COVER(), "COVER is made for two levels and this chain has 1: use SMVR"),
        ([SAMPLED], nx.PMVR(), "FrankWolfe needs Problem.linear_oracle=.*nx.steps.Descent"),
    ],
)
def test_what_does_not_apply_names_what_does(levels, estimator, sentence):
    problem = nx.Problem(levels, w0=np.zeros(2))
    with pytest.raises(nx.ProblemError, match=sentence):
        nx.minimize(problem, estimator, steps=1)


def test_ssd_refuses_what_is_not_convex_or_not_monotone():
    with pytest.raises(nx.ProblemError, match="level 'utility' is not convex: use SMVR instead"):
        nx.minimize(noisy("portfolio").problem, nx.SSD(), steps=1)
    rows = np.random.default_rng(0).normal(size=(20, 3))
    falling = [
        nx.Level(lambda w, r: (w - r) ** 2, rows, name="square"),
        nx.Level(lambda u: jnp.sum(jnp.exp(-u)), name="falling"),
    ]
    with pytest.raises(nx.ProblemError, match="level 'falling' is not non-decreasing"):
        nx.minimize(nx.Problem(falling, w0=np.ones(3)), nx.SSD(), steps=1)
    rising = [falling[0], nx.Level(lambda u: jnp.sum(jnp.exp(u / 9)), name="rising")]
    nx.SSD().check(nx.Problem(rising, w0=np.ones(3)))


def test_c_saga_wants_rows_that_count_equally():
    weighted = nx.Population(np.ones((5, 3)), weights=[1, 2, 3, 4, 5])
    levels = [nx.Level(lambda w, r: w * r, weighted), nx.Level(lambda u: u @ u)]
    with pytest.raises(nx.ProblemError, match="rows count equally: use SnapshotSMVR"):
        nx.minimize(nx.Problem(levels, w0=np.ones(3)), nx.CSAGA(), steps=1)


def test_lr_and_optimizer_exclude_each_other():
    with pytest.raises(nx.SettingError, match=r"SMVR\(lr=...\) sets the step rule .* leave one of"):
        nx.minimize(noisy("one_level").problem, nx.SMVR(lr=0.1), nx.steps.Descent(0.1), steps=1)


def test_products_per_draw_need_equal_batches():
    problem = noisy("portfolio").problem
    with pytest.raises(nx.SettingError, match="one batch size for all levels; got"):
        nx.minimize(problem, nx.PMM(), steps=1, batch_size={"mean": 2, "variance": 3})
