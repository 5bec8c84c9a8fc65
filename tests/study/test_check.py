"""The check finds what is wrong, and nothing else."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import nestax as nx
from nestax.study.check.memory import _about_bias

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
    assert "nothing wrong was found" in str(report)
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


@pytest.mark.parametrize("noise", [0.1, 10.0])
def test_a_closed_form_is_compared_with_draws_where_there_is_no_population(noise):
    """At the optimum, where the mean of draws inside of the square has nothing but a bias."""
    data = nx.Sampler(lambda key: noise * jax.random.normal(key))
    levels = [nx.Level(lambda w, x: jnp.sum(w) + x, data=data), nx.Level(lambda u: u**2 + 5)]
    check = lambda exact, at: nx.check(nx.Problem(levels, jnp.ones(2), exact=exact), w=at * jnp.ones(2))
    for at in (0.0, 1.0):
        assert check(lambda w: jnp.sum(w) ** 2 + 5, at).ok
    assert "exact= makes F(w) 104" in check(lambda w: jnp.sum(w) ** 2 + 100, 1.0).problems[0]


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
    assert "nothing wrong was found" not in str(report)
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


def chain(inner, outer, rows, w0):
    return nx.Problem(
        [nx.Level(inner, rows, name="inner"), nx.Level(outer, name="outer")], jnp.asarray(w0)
    )


def heavy():
    """Log E exp(1.5 r): the mean of a batch is mostly too low, and a gradient divides by it."""
    rows = np.random.default_rng(1).normal(size=4_000)
    return chain(lambda w, r: jnp.exp(w * r), jnp.log, rows, 1.5)


def test_the_bias_of_plain_batches_is_measured():
    """E‖mean of b draws‖² exceeds its goal by the variance over b, so the gradient by that share."""
    rows = np.random.default_rng(0).normal(1.0, 2.0, size=(500, 3))
    square = chain(lambda w, r: r * w, lambda u: jnp.sum(u**2), rows, np.ones(3))
    report = nx.check(square, draws=8_192)
    assert report.batch_size == 4
    expected = rows.var(axis=0) / 4
    expected = np.linalg.norm(expected) / np.linalg.norm(rows.mean(axis=0) ** 2)
    np.testing.assert_allclose(report.plain_bias, expected, rtol=0.15)
    assert "a method with memory removes that" in report.memory[0]


def test_memory_pays_where_plain_batches_are_biased():
    report = nx.check(heavy())
    assert report.plain_bias > 0.05
    assert f"plain batches of {report.batch_size} bias the gradient by" in report.memory[0]
    assert report.memory[0].endswith("a method with memory removes that.")
    off = report.levels[0].noise / np.sqrt(report.batch_size)
    assert report.memory[1].startswith(f"level 'inner': a batch of {report.batch_size} is off by ")
    share = float(report.memory[1].split("off by ")[1].split(" %")[0]) / 100
    np.testing.assert_allclose(share, off, rtol=0.3)
    assert [line for line in str(report).splitlines() if line[0] == "-"] == [
        f"- {sentence}" for sentence in report.memory
    ]


def test_a_chain_that_is_linear_in_its_draws_has_no_bias():
    rows = np.random.default_rng(0).normal(1.0, 5.0, size=(300, 3))
    report = nx.check(chain(lambda w, r: r * w, lambda u: 3 * jnp.sum(u), rows, np.ones(3)), draws=509)
    assert report.plain_bias < 1e-12  # 509 draws are no multiple of any batch
    assert "within the noise of this look: nx.Plain may do as well" in report.memory[0]
    assert "memory can bring that down" in report.memory[1]


def test_draws_without_noise_leave_nothing_to_memory():
    report = nx.check(chain(lambda w, r: r * w, lambda u: jnp.sum(u**2), np.ones((20, 3)), np.ones(3)))
    assert report.plain_bias < 1e-12
    assert report.memory[1] == "level 'inner': a batch of 1 is off by less than 1 %; " + (
        "memory has little to gain there."
    )


@pytest.mark.parametrize(
    ("bias", "error", "words"),
    [
        (0.14, 0.02, "14 % of its length (± 2 %): a method with memory removes that."),
        (12.0, 2.0, "1,200 % of its length (± 200 %): a method with memory removes that."),
        (0.01, 0.01, "less than 3 %, which is within the noise of this look: nx.Plain may do as well."),
        (0.008, 0.001, "less than 1 %: nx.Plain may do as well."),
        (
            0.2,
            0.15,
            "20 % of its length (± 15 %), which this look cannot tell from nothing: take more draws.",
        ),
    ],
)
def test_a_bias_is_called_small_only_if_it_is_known_to_be(bias, error, words):
    assert _about_bias(32, bias, error) == f"plain batches of 32 bias the gradient by {words}"


def test_what_cannot_be_measured_is_left_out():
    square = lambda u: jnp.sum(u**2)
    # A gradient of zero has no share; nor has a value of zero, but its derivative has.
    at_zero = nx.check(chain(lambda w, r: r * w, square, ROWS, np.zeros(3)))
    assert np.isnan(at_zero.plain_bias)
    assert at_zero.memory == ()
    shifted = nx.check(chain(lambda w, r: r * w, lambda u: square(u - 1), ROWS, np.zeros(3)))
    assert np.isfinite(shifted.plain_bias)
    assert shifted.memory[1].startswith("level 'inner': a batch of 1 is off by")
    assert "of the value" not in shifted.memory[1]
    few = nx.check(problem(), draws=3)
    assert np.isnan(few.plain_bias)
    assert few.memory == ()


def test_batched_levels_and_blocks_are_measured_too():
    rows = np.random.default_rng(0).normal(1.0, 2.0, size=(500, 3))
    make = lambda fn, data, **rest: nx.Problem(
        [nx.Level(fn, data, name="inner", **rest), nx.Level(lambda u: jnp.sum(u**2), name="outer")],
        jnp.ones(3),
    )
    single = nx.check(make(lambda w, r: r * w, rows))
    batched = nx.check(make(lambda w, r: jnp.mean(r, 0) * w, rows, batched=True))
    np.testing.assert_allclose(batched.plain_bias, single.plain_bias, rtol=1e-9)
    assert batched.memory == single.memory
    blocks = nx.check(make(lambda w, r: r * w, nx.Blocks(rows.reshape(5, 100, 3), visit=2)), draws=64)
    assert blocks.plain_bias > 0.1
    assert "a method with memory removes that" in blocks.memory[0]


@pytest.mark.parametrize("shape", [(), (2,)])
def test_a_level_with_a_generator_of_its_own_is_another_one_each_time(shape):
    """Of one number, which stands in the program, or of an array beside it."""
    rows = np.random.default_rng(0).normal(size=(20, 2))
    generator = np.random.default_rng(1)
    problem = lambda noise: nx.Problem(
        [
            nx.Level(lambda w, row: (w + row + noise()) @ row, rows, name="noisy"),
            nx.Level(lambda u: u**2),
        ],
        jnp.ones(2),
    )
    report = nx.check(problem(lambda: generator.normal(size=shape or None)), draws=16)
    assert any("level 'noisy' is another function each time" in words for words in report.problems)
    fixed = np.ones(shape)
    assert nx.check(problem(lambda: fixed), draws=16).ok


# Means that few rows carry


def outliers(penalty, far, dtype=np.float64, rows=2_000):
    """Robust regression at weights of 0, with so many targets that are far out."""
    rng = np.random.default_rng(0)
    y = 0.3 * rng.normal(size=rows)
    y[:far] = 4.0
    X = rng.normal(size=(rows, 3))
    return nx.problems.dro(dtype(X), dtype(y), "squared", nx.problems.KL(penalty), w0=np.zeros(3, dtype))


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_a_mean_that_few_rows_carry_is_named(dtype):
    report = nx.check(outliers(0.2, 3, dtype))
    assert report.few == ("losses",)
    assert report.ok
    (sentence,) = report.advice
    assert sentence.startswith(
        "level 'losses': 3 of 2,000 rows carry 99 % of its mean; batches without them look free of "
        "noise, and no memory of means helps: take a weaker tilt (a larger penalty or temperature)"
    )
    assert sentence.endswith("or all rows at times, nx.Exact() or nx.SnapshotSMVR().")
    assert report.batch_size == 1024  # of two thousand rows that three carry
    words = str(report)
    assert "suggested batch size: 1024, which is not enough, as few rows carry a mean" in words
    assert "removes that" not in words
    assert "memory can bring that down" not in words
    assert "nothing wrong was found" not in words
    assert np.isnan(report.plain_bias)
    # The draws that were looked at show none of it.
    assert report.levels[0].noise < 100


def test_one_row_carries_and_draws_of_a_simulator_are_called_draws():
    assert (
        "1 of 2,000 rows carries 99 % of its mean; batches without it"
        in nx.check(outliers(0.2, 1)).advice[0]
    )
    value = nx.Sampler(lambda key: jax.random.normal(key))
    burst = nx.Level(lambda w, z: w * jnp.exp(6 * z), value, name="burst", project=lambda u: u + 0)
    problem = nx.Problem([burst, nx.Level(lambda u: u**2, name="square")], jnp.asarray(1.0))
    (sentence,) = (s for s in nx.check(problem).advice if "carr" in s)
    assert "of 512 draws looked at carr" in sentence
    assert "nx.Exact()" not in sentence


def test_weights_of_rows_count():
    """A row of loss 0 but for one, which is drawn as often as all others together."""
    rows = np.zeros(1_000)
    rows[0] = 1.0
    level = lambda data: nx.Level(lambda w, row: w * (0.01 + row), data, name="inner")
    problem = lambda data: nx.Problem([level(data), nx.Level(lambda u: u**2)], jnp.asarray(1.0))
    weights = np.where(rows > 0, 1e-3, 1.0)
    assert nx.check(problem(rows + 0.0)).few == ()
    assert nx.check(problem(100 * rows)).few == ("inner",)
    assert nx.check(problem(nx.Population(100 * rows, weights=weights))).few == ()


def class_balanced(share, rows=4_000):
    """Mean losses of two classes, of which one is rare."""
    rng = np.random.default_rng(0)
    y = (np.arange(rows) < share * rows).astype(float)
    X = rng.normal(size=(rows, 4)) + y[:, None]

    def classes(w, row):
        x, y = row
        loss = jax.nn.softplus((1 - 2 * y) * (x @ w))
        return jnp.stack([y * loss, y, (1 - y) * loss, 1 - y])

    return nx.Problem(
        [
            nx.Level(classes, (X, y), name="classes"),
            nx.Level(lambda u: u[0] / u[1] + u[2] / u[3], name="balanced"),
        ],
        jnp.zeros(4),
    )


def rare_class():
    y = (np.arange(2_000) % 20 == 0).astype(int)
    return np.random.default_rng(0).normal(size=(2_000, 4)) + 1.5 * y[:, None], y


def survival():
    rng = np.random.default_rng(0)
    return rng.normal(size=(300, 3)), rng.exponential(size=300), rng.uniform(size=300) < 0.5


P = nx.problems


@pytest.mark.parametrize(
    "make",
    [
        lambda: P.mean_deviation(nx.datasets.synthetic_returns(500, 3)),
        lambda: P.mean_semideviation(nx.datasets.synthetic_returns(500, 3)),
        lambda: P.mean_variance(nx.datasets.synthetic_returns(500, 3)),
        lambda: P.log_utility(nx.datasets.synthetic_returns(500, 3)),
        lambda: P.mean_cvar(nx.datasets.synthetic_returns(500, 3)),
        lambda: P.term(*rare_class(), "logistic", 5.0),
        lambda: P.hierarchical_term(P.groups_of(*rare_class())),
        lambda: P.hierarchical_term(P.groups_of(*rare_class()), pooled=True),
        lambda: P.dro(*rare_class(), "logistic", P.KL(0.05, 1.0)),
        lambda: P.dro(*rare_class(), "logistic", P.ChiSquare(0.1, 0.5)),
        lambda: P.dro(*rare_class(), "logistic", P.CVaR(0.05)),
        lambda: P.cox(*survival()),
        lambda: class_balanced(0.05),
        lambda: class_balanced(0.003),
        heavy,
    ],
)
def test_ready_problems_raise_no_false_alarm(make):
    report = nx.check(make())
    assert report.few == ()
    assert "carry" not in str(report)
