"""Under jit, vmap and scan an estimator keeps its state's structure, shapes and dtypes."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from tests.support.cases import noisy, rng_of
from tests.support.compare import assert_same, flat
from tests.support.compiled import quick_jit
from tests.support.drive import BATCH, STEPS, draws_at, population_batches
from tests.support.methods import FLOAT32, MODES, TYPES, chain_of, every_method, is_for_any_chain

import nestax as nx
from nestax.trees import cast

VARIANTS = {
    "SMVR in a ball": nx.SMVR(0.3, radius=0.5),
    "SMVR in a spectral ball": nx.SMVR(0.3, radius=[0.5, 0.4, 0.3], ball="spectral"),
    "AdjointSMVR in a ball": nx.AdjointSMVR(0.3, radius=0.5),
    "ProductSMVR in a ball": nx.ProductSMVR(0.3, radius=0.5),
    "SMVR on a schedule": nx.SMVR(lambda t: 0.3 / (1 + t)),
}
ESTIMATORS = every_method() | VARIANTS


def types(tree):
    leaves, structure = jax.tree.flatten(tree)
    return structure, [(x.shape, jnp.dtype(x.dtype)) for x in leaves]


def problem_for(method, name):
    """The chain of that name for a method for any chain, one of its own for others."""
    return (noisy(name) if is_for_any_chain(method) else chain_of(method)).problem


def ready_for(problem, method):
    return method.defaults(problem, STEPS, (BATCH,) * len(problem.levels))


def batches_for(problem, estimator, step=0, every_block=False):
    return draws_at(problem, tuple(estimator.passes), step, BATCH, every_block)


def first_batches_for(problem, estimator):
    if estimator.refresh_batch == "population":
        return population_batches(problem, tuple(estimator.passes))
    return batches_for(problem, estimator, every_block=estimator.blocks == "table")


def start_shapes(problem, estimator):
    batches = first_batches_for(problem, estimator)
    return jax.eval_shape(lambda b: estimator.init(problem, problem.w0, b), batches)


@pytest.mark.parametrize("name", [*TYPES.covers, *VARIANTS])
def test_update_keeps_the_types_of_estimate_and_state(name):
    problem = problem_for(ESTIMATORS[name], "tree")
    method = ready_for(problem, ESTIMATORS[name])
    batches = batches_for(problem, method, 1)
    start = start_shapes(problem, method)
    update = lambda w, b, s: method.update(problem, w, b, s)
    assert types(jax.eval_shape(jax.jit(update), problem.w0, batches, start[1])) == types(start)
    lanes = lambda tree: jax.tree.map(lambda x: jax.ShapeDtypeStruct((7, *x.shape), x.dtype), tree)
    inputs = (problem.w0, batches, start[1])
    assert types(jax.eval_shape(jax.vmap(update), *map(lanes, inputs))) == types(lanes(start))


@pytest.mark.parametrize("name", [*TYPES.covers, *VARIANTS])
def test_state_is_a_carry_of_scan(name):
    problem = problem_for(ESTIMATORS[name], "portfolio")
    method = ready_for(problem, ESTIMATORS[name])
    batches = batches_for(problem, method, 1)
    start = start_shapes(problem, method)

    def scanned(state, batches):
        step = lambda s, _: (method.update(problem, problem.w0, batches, s)[1], None)
        return jax.lax.scan(step, state, None, length=3)[0]

    assert types(jax.eval_shape(scanned, start[1], batches)) == types(start[1])


@pytest.mark.parametrize(
    ("name", "chain"),
    [(n, "portfolio") for n in TYPES.covers if ESTIMATORS[n].period is not None]
    + [(n, "tree") for n in ("Exact", "NestedSPIDER", "PMFS", "SnapshotSMVR")],
)
def test_refresh_and_update_are_branches_of_cond(name, chain):
    problem = problem_for(ESTIMATORS[name], chain)
    method = ready_for(problem, ESTIMATORS[name])
    everything = first_batches_for(problem, method)
    batches = batches_for(problem, method, 1)
    start = start_shapes(problem, method)

    def either(which, w, state):
        refresh = lambda: method.refresh(problem, w, everything, state)
        return jax.lax.cond(which, refresh, lambda: method.update(problem, w, batches, state))

    assert types(jax.eval_shape(either, True, problem.w0, start[1])) == types(start)


@pytest.mark.parametrize("estimator", ["SMVR in a ball", "AdjointSMVR lagged", "ProductSMVR fresh"])
def test_lanes_with_different_beta_equal_single_runs(estimator):
    problem, method = noisy("three_levels").problem, ESTIMATORS[estimator]
    first, second = batches_for(problem, method, 0), batches_for(problem, method, 1)
    new_w = jax.tree.map(lambda x: x + 0.1, problem.w0)

    def two_steps(beta):
        changed = eqx.tree_at(lambda m: m.beta, method, beta)
        _, state = changed.init(problem, problem.w0, first)
        return changed.update(problem, new_w, second, state)[0].grad

    betas = jnp.asarray([0.1, 0.5, 1.0])
    lanes = quick_jit(jax.vmap(two_steps))(betas)
    single = quick_jit(two_steps)
    assert_same(lanes, np.stack([single(b) for b in betas]))
    assert np.ptp(lanes, axis=0).max() > 1e-3


@pytest.mark.parametrize(
    "estimator", ["SMVR in a ball", "AdjointSMVR in a ball", "ProductSMVR fresh", "SnapshotSMVR"]
)
def test_one_trace_for_all_values_of_the_settings(estimator):
    problem, method = noisy("three_levels").problem, ESTIMATORS[estimator]
    batches = batches_for(problem, method)
    traces = []

    @quick_jit
    def start(method, w):
        traces.append(method)
        return method.init(problem, w, batches)[0].grad

    first = start(method, problem.w0)
    beta = eqx.tree_at(lambda m: m.beta, method, jnp.asarray(0.7))
    start(beta, problem.w0)
    if getattr(method, "radius", None) is not None:
        radius = eqx.tree_at(lambda m: m.radius, method, jnp.asarray(0.1))
        assert np.abs(start(radius, problem.w0) - first).max() > 1e-3
    assert len(traces) == 1


# float32 stays float32 although float64 is enabled


def single_precision(method):
    """Float32 weights; the rows come as float64 and are converted."""
    rng = rng_of("single precision")
    levels, in_blocks = method.about.levels or 3, method.blocks == "table"

    def rows(*shape):
        return (
            nx.Blocks(rng.normal(size=(3, 30, *shape)), visit=2)
            if in_blocks
            else rng.normal(size=(30, *shape))
        )

    inner = nx.Level(lambda w, A: (jnp.tanh(A @ w), w), rows(3, 4), name="inner")
    middle = nx.Level(lambda u, c: (c @ u[0] + u[1] @ u[1], u[0]), rows(3), name="middle")
    exact = nx.Level(lambda v: jnp.sum(v[0] ** 2) + jnp.sum(v[1] ** 2), name="outer")
    drawn = nx.Level(lambda v, c: c @ v[0] + jnp.sum(v[1] ** 2), rows(3), name="outer")
    chains = {
        1: [nx.Level(lambda w, a: (a @ w) ** 2, rows(4), name="loss")],
        2: [inner, exact if method.about.outer_exact else drawn],
        3: [inner, middle, exact],
    }
    return nx.Problem(chains[levels], w0=rng.normal(size=4).astype(np.float32))


def wide(tree):
    """Every floating-point leaf that is not float32, by its path."""
    leaves = jax.tree.leaves_with_path(tree)
    floats = [
        (jax.tree_util.keystr(p), x.dtype) for p, x in leaves if jnp.issubdtype(x.dtype, jnp.floating)
    ]
    assert floats
    return [(path, dtype) for path, dtype in floats if dtype != jnp.float32]


IN_BALLS = VARIANTS | {
    f"{kind.__name__} {mode} in a ball": kind(0.3, mode, radius=0.5)
    for kind in (nx.AdjointSMVR, nx.ProductSMVR)
    for mode in MODES
    if mode != "lagged"
}


@pytest.mark.parametrize("name", [*FLOAT32.covers, *IN_BALLS])
def test_float32_stays_float32(name):
    method = (every_method() | IN_BALLS)[name]
    problem = single_precision(method)
    method = cast(ready_for(problem, method), jnp.float32)
    start = start_shapes(problem, method)
    batches = batches_for(problem, method, 1)
    after = jax.eval_shape(lambda s: method.update(problem, problem.w0, batches, s), start[1])
    assert wide(start) == []
    assert wide(after) == []


def test_minimize_runs_in_the_dtype_of_the_weights():
    rows = rng_of("rows").normal(size=(30, 4))
    level = nx.Level(lambda w, a: (a @ w) ** 2, rows)
    problem = nx.Problem([level], w0=np.ones(4, np.float32))
    result = nx.minimize(
        problem, nx.AdjointSMVR(0.3, radius=0.5), optax.sgd(0.01), steps=3, record=["value"]
    )
    assert wide(result.carry.lane) == []
    assert flat(result.w).dtype == np.float32
