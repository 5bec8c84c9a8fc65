"""Blocks that are outer draws: pairs, ranges, simulators; what is drawn, computed once, and refused."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from tests.support.compare import assert_same, flat

import nestax as nx
from nestax.loop.plan import Meter
from nestax.parts.estimator import draw_batches

KEY = jax.random.key(0)
M, N, VISIT = 7, 5, 3
RANGES = (np.asarray([0, 1, 2, 0, 1, 0, 3]), np.asarray([5, 2, 3, 1, 4, 5, 2]))
EVEN = (np.asarray([0, 1, 2, 0, 1, 2, 2]), np.full(M, 3))


def rows():
    rng = np.random.default_rng(0)
    return rng.normal(size=(M, 2)), rng.normal(size=(N, 2))


def inner(w, pair):
    x, z = pair
    return jnp.exp(0.3 * (x - z) @ w)


def outer(u, x):
    return jnp.log(u) * x[0] + u


def chain(inner_rows, *, visit=VISIT, **options):
    X = rows()[0]
    first = nx.Level(inner, nx.Conditional(X, inner_rows, visit=visit, **options), name="inner")
    return nx.Problem(
        [first, nx.Level(outer, nx.Conditional(X, visit=visit), name="outer")], jnp.ones(2)
    )


@pytest.mark.parametrize("options", [{}, {"shared": True}, {"ranges": EVEN}, {"ranges": RANGES}])
def test_value_and_gradient_are_those_of_loops(options):
    """Of all blocks in parts, and side by side where they have one length."""
    X, Z = rows()
    first, count = options.get("ranges", (np.zeros(M, int), np.full(M, N)))

    def by_loops(w):
        each = []
        for m in range(M):
            mean = jnp.mean(
                jnp.asarray([inner(w, (X[m], z)) for z in Z[first[m] : first[m] + count[m]]])
            )
            each.append(outer(mean, X[m]))
        return jnp.mean(jnp.asarray(each))

    problem = chain(Z, **options)
    w = jnp.asarray([0.4, -0.7])
    value, grad = jax.jit(jax.value_and_grad(by_loops))(w)
    whole = [problem] if options.get("ranges") is RANGES else [problem, problem.every_block()]
    for form in whole:
        got, slope = eqx.filter_jit(form.value_and_grad)(w)
        assert_same(got, value)
        assert_same(flat(slope), grad)
    assert problem.blocks.size == count.sum()


@pytest.mark.parametrize("ranges", [None, EVEN, RANGES])
def test_all_rows_of_a_range_are_drawn_and_nothing_else(ranges):
    Z = np.arange(N, dtype=float)
    source = nx.Conditional(np.arange(M, dtype=float), Z, visit=M, ranges=ranges)
    visits = source.draw_in(jnp.arange(M), KEY, jnp.asarray(0), 200)
    drawn = np.asarray(jax.vmap(lambda v: source.batch(v).draws)(visits))
    everything = (np.zeros(M, int), np.full(M, N))
    for m, (first, count) in enumerate(zip(*(ranges or everything), strict=True)):
        assert set(drawn[m]) == set(range(first, first + count))


def test_shared_rows_are_the_same_for_all_blocks_and_evaluated_once():
    """A level looks at visit + batch_size rows: the count of evaluations that are made side by side."""
    X, Z = rows()
    problem = chain(Z, shared=True)
    visits = draw_batches(problem, ("value",), KEY, 0, (4, 0))[0]["value"]
    assert visits.index.shape == (4,)

    def widths(shared: bool) -> int:
        """Entries that come out of the cosines of rows."""
        both = lambda w, pair: jnp.cos(pair[0] * w) @ jnp.cos(pair[1] * w)
        source = nx.Conditional(X, Z, visit=VISIT, shared=shared)
        chain = nx.Problem([nx.Level(both, source), nx.Level(jnp.square)], jnp.ones(2))
        plain = nx.Plain()
        step = lambda w: plain.init(chain, w, draw_batches(chain, plain, KEY, 0, (4, 0)))[0].value
        eqns = _all(jax.make_jaxpr(step)(chain.w0).jaxpr)
        return sum(eqn.outvars[0].aval.size for eqn in eqns if eqn.primitive.name == "cos") // 2

    assert widths(True) == VISIT + 4
    assert widths(False) == VISIT + VISIT * 4


def _all(jaxpr):
    for eqn in jaxpr.eqns:
        yield eqn
        for value in eqn.params.values():
            if hasattr(value, "jaxpr"):
                yield from _all(value.jaxpr)


@pytest.mark.parametrize("options", [{}, {"shared": True}, {"ranges": RANGES}])
@pytest.mark.parametrize(
    "method", [nx.SOX(0.3, 0.3), nx.PerBlock(nx.SCSC(0.3))], ids=lambda m: m.__class__
)
def test_whole_blocks_give_the_exact_gradient(method, options):
    """Without noise, that is with one row a block, and all blocks visited."""
    if "ranges" in options:
        options = {"ranges": (RANGES[0], np.ones(M, int))}
        Z = rows()[1]
    else:
        Z = rows()[1][:1]
    problem = chain(Z, visit=M, **options)
    first = draw_batches(problem, method, KEY, 0, (1, 0), every_block=True)
    estimate, _ = eqx.filter_jit(method.init)(problem, problem.w0, first)
    value, grad = eqx.filter_jit(problem.value_and_grad)(problem.w0)
    assert_same(estimate.value, value)
    assert_same(flat(estimate.grad), flat(grad))


def simulated(outer_draws, **options):
    """E_ξ (E_{η|ξ} (w − η))² with η ~ N(ξ, 1): least at the mean of ξ, where it is Var ξ."""
    source = nx.Conditional(outer_draws, lambda xi, key: xi + jax.random.normal(key), visit=2, **options)
    levels = [
        nx.Level(lambda w, pair: w - pair[1], source, name="gap"),
        nx.Level(jnp.square, name="cost"),
    ]
    return nx.Problem(levels, jnp.asarray(4.0))


def test_simulators_given_rows():
    """A moving average for every row finds the mean; every row has draws of its own."""
    problem = simulated(jnp.asarray([-1.0, 0.0, 2.5]))
    visits = draw_batches(problem, ("value",), KEY, 0, (400, 0), every_block=True)[0]["value"]
    drawn = jax.vmap(lambda v: problem.blocks.batch(v).draws)(visits)
    assert np.abs(np.asarray(drawn.mean(1)) - [-1.0, 0.0, 2.5]).max() < 0.2
    result = nx.minimize(
        problem, nx.SOX(0.1, 0.2), optax.sgd(0.02), steps=2_000, batch_size=4, progress=False
    )
    assert abs(float(result.w) - 0.5) < 0.25
    assert "exact_value" not in result.records


def test_a_list_of_simulators():
    """One a block; what each draws is its own."""
    each = [nx.Sampler(lambda key, m=m: m + 0.1 * jax.random.normal(key)) for m in (-1.0, 0.0, 4.0)]
    blocks = nx.Blocks(each, visit=2)
    assert (blocks.blocks, blocks.size, blocks.most) == (3, None, None)
    visits = blocks.draw_in(jnp.arange(3), KEY, jnp.asarray(0), 300)
    drawn = jax.vmap(lambda v: blocks.batch(v).draws)(visits)
    assert np.abs(np.asarray(drawn.mean(1)) - [-1.0, 0.0, 4.0]).max() < 0.03
    assert abs(float(blocks.block(2).draw(KEY, jnp.asarray(0), 100).draws.mean()) - 4) < 0.1
    problem = nx.Problem([nx.Level(lambda w, x: w - x, blocks), nx.Level(jnp.square)], jnp.zeros(()))
    result = nx.minimize(
        problem, nx.PerBlock(nx.SCSC(0.2)), optax.sgd(0.02), steps=500, batch_size=2, progress=False
    )
    assert abs(float(result.w) - 1) < 0.3


def test_samples_are_those_of_the_visited():
    problem = chain(rows()[1], shared=True)
    meter = Meter(problem, nx.SOX(0.1, 0.1), (4, 0), (4, 0))
    assert meter.per_step.samples == 2 * VISIT * 4
    assert meter.start.samples == 2 * M * 4


def two_levels(first, second):
    inner = nx.Conditional(nx.Sampler(first), lambda xi, key: xi, visit=2)
    outer = nx.Conditional(nx.Sampler(second), visit=2)
    levels = [
        nx.Level(lambda w, pair: w - pair[1], inner, name="gap"),
        nx.Level(lambda u, xi: u**2 + 0 * jnp.sum(xi), outer, name="cost"),
    ]
    return nx.Problem(levels, jnp.asarray(4.0))


def test_a_level_may_see_a_part_of_the_outer_draw():
    part = lambda key: jnp.stack([jax.random.normal(key), 1.0])
    assert two_levels(jax.random.normal, part).endless


ROWS = np.ones((4, 2))


@pytest.mark.parametrize(
    ("build", "sentence"),
    [
        (lambda: nx.Conditional(ROWS, ROWS, visit=5), "at most the number of outer rows, 4; got 5"),
        (
            lambda: nx.Conditional(np.zeros((0, 2)), ROWS, visit=1),
            "outer of nx.Conditional: data is empty",
        ),
        (lambda: nx.Conditional(ROWS, np.full((3, 2), np.nan), visit=1), "inner .*: data has 6 entries"),
        (lambda: nx.Conditional(lambda key: key, ROWS, visit=1), "is a function: pass nx.Sampler"),
        (lambda: nx.Conditional(nx.Blocks(np.ones((2, 2)), visit=1), visit=1), "rows or a simulator"),
        (lambda: nx.Conditional(ROWS, ROWS, visit=1, ranges=ROWS), "must be two arrays"),
        (lambda: nx.Conditional(ROWS, ROWS, visit=1, ranges=([0], [1])), r"of shape \(4,\)"),
        (
            lambda: nx.Conditional(ROWS, ROWS, visit=1, ranges=([0, 0, 0, 0], [1, 1, 0, 1])),
            "outer row 2 has no inner rows in its range: leave it out",
        ),
        (
            lambda: nx.Conditional(ROWS, ROWS, visit=1, ranges=([0, 3, 0, 0], [1, 2, 1, 1])),
            "range of outer row 1 reaches beyond the 4 inner rows",
        ),
        (
            lambda: nx.Conditional(ROWS, ROWS, visit=1, ranges=([0] * 4, [1] * 4), shared=True),
            "cannot share rows",
        ),
        (lambda: nx.Conditional(ROWS, lambda x, k: x, visit=1, ranges=([0], [1])), "give rows as outer"),
        (
            lambda: nx.Blocks([nx.Sampler(lambda k: k), np.ones(3)], visit=1),
            "all rows or all nx.Sampler",
        ),
        (
            lambda: nx.Blocks([nx.Sampler(jax.random.normal), nx.Sampler(lambda k: k)], visit=1),
            "draws of one structure, shape and dtype; block 1 has",
        ),
        (
            lambda: nx.Conditional(np.ones(5_000), np.ones(5_000), visit=1).every_row(),
            "25,000,000 pairs of rows are too many to be seen side by side",
        ),
        (
            lambda: two_levels(lambda key: 3 + jax.random.normal(key), jax.random.normal),
            "'gap' and 'cost' are about different outer draws: give both the same nx.Sampler",
        ),
        (lambda: simulated(jnp.zeros(3)).every_block().value(jnp.ones(())), "has no population"),
    ],
)
def test_refusals(build, sentence):
    with pytest.raises(ValueError, match=sentence):
        build()


def test_no_pair_is_held():
    """100,000 anchors beside 100,000 rows are 10 billion pairs."""
    X = np.ones((100_000, 1), np.float32)
    source = nx.Conditional(X, X, visit=4)
    assert sum(x.nbytes for x in jax.tree.leaves(source)) == 2 * X.nbytes
    assert source.size == 10**10
