"""The check finds what is wrong, and nothing else."""

import jax
import jax.numpy as jnp
import numpy as np

import nestax as nx

ROWS = np.random.default_rng(0).normal(1.0, 0.3, size=(300, 3))


def problem(inner=lambda w, r: r * w, **rest):
    return nx.Problem(
        [
            nx.Level(inner, ROWS, name="inner", **rest),
            nx.Level(lambda u: jnp.sum(u**2), name="outer"),
        ],
        jnp.asarray([1.0, -0.5, 2.0]),
    )


def test_a_good_problem_passes_and_prints():
    report = nx.check(problem())
    assert report.ok
    assert "no problem found" in str(report)
    np.testing.assert_allclose(report.levels[0].noise, 0.3, rtol=0.2)
    assert report.levels[1].noise == 0


def test_a_wrong_derivative_is_found():
    @jax.custom_jvp
    def square(w):
        return w**2

    square.defjvp(lambda primals, tangents: (primals[0] ** 2, primals[0] * tangents[0]))
    report = nx.check(problem(lambda w, r: r * square(w)))
    assert not report.ok
    assert "level 'inner': its derivative differs" in report.problems[0]


def unequal(log=jnp.log):
    """A logarithm of values between 10⁻¹² and 10⁹."""
    scale = jnp.asarray([1e-12, 1.0, 1e9])
    return nx.Problem(
        [
            nx.Level(lambda w, r: scale * w**2 * r**2, ROWS, name="values"),
            nx.Level(lambda u: jnp.sum(log(u)), name="log"),
        ],
        jnp.asarray([1.0, -0.5, 2.0]),
    )


def test_values_are_varied_by_parts_of_themselves():
    report = nx.check(unequal())
    assert report.ok
    assert report.levels[1].gradient_error < 1e-9

    @jax.custom_jvp
    def log(u):
        return jnp.log(u)

    log.defjvp(lambda primals, tangents: (jnp.log(primals[0]), 1.01 * tangents[0] / primals[0]))
    assert "level 'log': its derivative differs" in nx.check(unequal(log)).problems[0]


def test_a_strong_tilt_passes_where_its_mean_is_tiny():
    rng = np.random.default_rng(0)
    groups = [(rng.normal(size=(size, 3)), np.arange(size) % 2) for size in (12, 5, 7)]
    problem = nx.problems.hierarchical_term(groups, inner_tilt=-20, outer_tilt=50)
    report = nx.check(problem, w=jnp.asarray([0.5, -0.3, 0.7]))
    assert report.ok, report


def test_weights_near_zero_are_varied_by_more_than_themselves():
    """In float32 a millionth part of the weights moves nothing."""

    @jax.custom_jvp
    def wave(w):
        return 1 + jnp.sin(w)

    wave.defjvp(lambda primals, tangents: (wave(primals[0]), 1.5 * jnp.cos(primals[0]) * tangents[0]))
    make = lambda fn: nx.Problem(
        [nx.Level(lambda w, r: r * fn(w), ROWS, name="inner"), nx.Level(jnp.sum, name="sum")],
        jnp.full(3, 1e-4, jnp.float32),
    )
    assert nx.check(make(lambda w: 1 + jnp.sin(w))).ok
    assert "level 'inner': its derivative differs" in nx.check(make(wave)).problems[0]


def test_a_range_that_does_not_hold_the_values_is_found():
    report = nx.check(problem(project=lambda u: jnp.maximum(u, 0.0)))
    assert "outside the set" in report.problems[0]
    assert nx.check(problem(project=lambda u: jnp.maximum(u, -10.0))).ok


def test_a_wrong_closed_form_is_found():
    base = problem()
    right = lambda w: jnp.sum((jnp.asarray(ROWS.mean(axis=0)) * w) ** 2)
    check = lambda exact: nx.check(nx.Problem(base.levels, base.w0, exact=exact))
    assert check(right).ok
    assert "exact= differs" in check(lambda w: 1.01 * right(w)).problems[0]


def test_the_suggested_batch_grows_with_the_noise():
    noisy = lambda scale: nx.Problem(
        [
            nx.Level(lambda w, r: w * (1 + scale * (r - 1)), ROWS, name="inner"),
            nx.Level(lambda u: jnp.sum(u**2), name="outer"),
        ],
        jnp.ones(3),
    )
    sizes = [nx.check(noisy(scale)).batch_size for scale in (0.1, 10.0, 60.0)]
    assert sizes[0] == 1 < sizes[1] < sizes[2]
    # tr Cov = 3·(0.3·scale)²·4 over ‖∇F‖² = 12
    np.testing.assert_allclose(np.log2(sizes[1]), np.log2(9.0), atol=1.0)


def logarithm(project=None, between=()):
    """A mean with a standard deviation of 1.5 times its size, and its logarithm."""
    return nx.Problem(
        [
            nx.Level(lambda w, r: w * jnp.exp(r), 1.1 * (4 * ROWS - 4), project=project, name="mean"),
            *between,
            nx.Level(lambda u: jnp.sum(jnp.log(u)), name="log"),
        ],
        jnp.ones(3),
    )


def test_a_level_that_noise_carries_out_of_its_domain_is_named():
    report = nx.check(logarithm())
    assert report.levels[0].noise > 1
    assert report.ok  # every draw is fine, a tracked value may not be
    sentence = "level 'log': not finite where its input is off by the noise of one draw"
    assert report.advice[0].startswith(sentence)
    assert "give level 'mean' a project=" in report.advice[0]
    assert str(report).splitlines()[-1] == f"? {report.advice[0]}"
    assert nx.check(logarithm(lambda u: jnp.maximum(u, 0.01))).advice == ()
    # log 0 is not finite; and a level without noise hands the noise on.
    assert nx.check(logarithm(lambda u: jnp.maximum(u, 0.0))).advice
    doubled = nx.check(logarithm(between=[nx.Level(lambda u: 2 * u, name="double")]))
    assert "give level 'double' a project=" in doubled.advice[0]


def test_rows_without_replacement_may_be_fewer_than_the_draws():
    rows = nx.Population(np.arange(5.0), replace=False)
    problem = nx.Problem([nx.Level(lambda w, x: (w - x) ** 2, rows, name="square")], jnp.ones(()))
    report = nx.check(problem)
    assert report.ok, str(report)
    mean, deviation = np.mean([1, 0, 1, 4, 9]), np.std([1, 0, 1, 4, 9])  # all five rows, each once
    np.testing.assert_allclose(report.levels[0].noise, deviation / mean, rtol=1e-9)
