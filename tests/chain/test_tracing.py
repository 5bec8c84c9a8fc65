"""Functions as data: equal if they compute the same; constants and numbers are leaves."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import nestax as nx
from nestax.chain.tracing import Program, Traced, compute, origins_of, shapes_of, trace

X = jax.ShapeDtypeStruct((3,), jnp.float64)


@jax.custom_vjp
def own_rule(x):
    return x**3


own_rule.defvjp(lambda x: (x**3, x), lambda x, p: (7 * x * p,))


def structure(fn, *args, **options):
    return jax.tree.structure(trace(fn, *(args or (X,)), **options))


def test_a_traced_function_computes_what_the_function_does():
    table = np.arange(3.0)
    fn = lambda x, scale=2.0: {"a": scale * x + table, "b": (jnp.sin(x), x)}
    traced = trace(fn, X)
    x = jnp.asarray([1.0, 2.0, 4.0])
    jax.tree.map(np.testing.assert_array_equal, traced(x), fn(x))
    named = trace(lambda x, *, y: x * y, X, y=X)
    np.testing.assert_array_equal(named(x, y=x), x * x)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (lambda x: x + 1.0, lambda y: y + 1.0),
        (lambda x: jnp.sum(x**2), lambda x: (lambda z: jnp.sum(z**2))(x)),
        (lambda x: jax.nn.relu(x), lambda x: jax.nn.relu(x)),
        (lambda x: jax.nn.softplus(x) @ x, lambda x: jax.nn.softplus(x) @ x),
        (lambda x: own_rule(x), lambda x: own_rule(x)),
        (lambda x: jax.grad(lambda x: own_rule(x).sum())(x),) * 2,
    ],
)
def test_equal_computations_are_equal(one, other):
    assert structure(one) == structure(other)
    assert hash(structure(one)) == hash(structure(other))


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (lambda x: x + 1.0, lambda x: x + 2.0),
        (lambda x: x + 1.0, lambda x: 1.0 - x),
        (lambda x: x[0] + x[1], lambda x: x[0] + x[2]),
        (lambda x: jnp.sum(x), lambda x: jnp.max(x)),
        (lambda x: (x, x), lambda x: [x, x]),
        (lambda x: (x, 2 * x), lambda x: (2 * x, x)),
        (lambda x: jax.lax.fori_loop(0, 3, lambda _, y: y * 2.0, x),) * 2,
    ],
)
def test_other_computations_are_not(one, other):
    same = one is other  # a loop is equal to itself, and to none with another number in it
    assert (structure(one) == structure(other)) == same
    if same:
        assert structure(one) != structure(lambda x: jax.lax.fori_loop(0, 3, lambda _, y: y * 3.0, x))


def test_other_shapes_and_dtypes_are_other_programs():
    double = lambda x: 2 * x
    assert structure(double, X) != structure(double, jax.ShapeDtypeStruct((4,), jnp.float64))
    assert structure(double, X) != structure(double, jax.ShapeDtypeStruct((3,), jnp.float32))


def test_arrays_are_leaves_and_those_inside_jitted_functions_count():
    make = lambda table: lambda x: x + table
    one, other = trace(make(np.ones(3)), X), trace(make(np.full(3, 2.0)), X)
    assert jax.tree.structure(one) == jax.tree.structure(other)
    assert isinstance(other.constants[0], jax.Array)  # and not once more on its way at every call
    np.testing.assert_array_equal(other(jnp.zeros(3)), np.full(3, 2.0))
    inside = lambda table: jax.jit(lambda x: x + table)
    one, other = trace(inside(np.ones(3)), X), trace(inside(np.full(3, 2.0)), X)
    np.testing.assert_array_equal(one(jnp.zeros(3)), np.ones(3))
    np.testing.assert_array_equal(other(jnp.zeros(3)), np.full(3, 2.0))
    different = jax.tree.structure(one) != jax.tree.structure(other)
    assert different or not all(map(np.array_equal, one.constants, other.constants))


def test_keys_and_bfloat16_may_be_closed_over():
    key = jax.random.key(3)
    table = jnp.ones(3, jnp.bfloat16)
    fn = lambda x: jax.random.normal(key, (3,)) * x + table
    np.testing.assert_array_equal(trace(fn, X)(jnp.ones(3)), fn(jnp.ones(3)))


def test_functions_of_the_host_are_told_apart():
    def through(host):
        return lambda x: jax.pure_callback(host, X, x)

    first, second = (lambda x: x + 1), (lambda x: x + 2)
    assert structure(through(first)) == structure(through(first))
    assert structure(through(first)) != structure(through(second))


def test_shared_constants_are_one_array():
    table = np.arange(3.0)
    shared = {}
    one = trace(lambda x: x + table, X, shared=shared)
    other = trace(lambda x: x * table, X, shared=shared)
    assert one.constants[0] is other.constants[0]


# Numbers as leaves


def test_lifted_functions_differ_in_numbers_alone():
    make = lambda a, n: lambda x: jnp.where(x > a, a * x, x / n) + n
    one, other = trace(make(0.5, 3), X, lift=True), trace(make(0.25, 7), X, lift=True)
    assert jax.tree.structure(one) == jax.tree.structure(other)
    assert jax.tree.structure(one) != structure(lambda x: x, lift=True)
    x = jnp.asarray([0.1, 0.4, 2.0])
    np.testing.assert_allclose(one(x), make(0.5, 3)(x), rtol=1e-15)
    np.testing.assert_allclose(other(x), make(0.25, 7)(x), rtol=1e-15)


def test_numbers_that_are_results_are_lifted_too():
    """As ``optax.inject_hyperparams`` has them in its state."""
    make = lambda lr: lambda x: (x, jnp.asarray(lr), 3)
    one, other = trace(make(0.1), X, lift=True), trace(make(0.2), X, lift=True)
    assert jax.tree.structure(one) == jax.tree.structure(other)
    assert float(other(jnp.zeros(3))[1]) == 0.2


def test_an_optimiser_as_data_is_the_optimiser_to_the_last_bit():
    """What is computed in Python, such as 1 − b2, is not computed again in fewer digits."""
    with jax.enable_x64(False):
        w = jnp.asarray([1.0, -2.0, 0.5])
        adam = optax.adam(0.01, b2=0.999)
        init = trace(adam.init, w, lift=True)
        state = plain = adam.init(w)
        jax.tree.map(np.testing.assert_array_equal, init(w), plain)
        update = trace(adam.update, w, state, w, lift=True)
        for k in range(4):
            grad = w * (k + 1)
            change, state = jax.jit(lambda *args: update(*args))(grad, state, w)
            other, plain = jax.jit(adam.update)(grad, plain, w)
            np.testing.assert_array_equal(change, other)


# What is found again


def test_computing_finds_a_program_again_and_sees_what_has_changed():
    calls = []
    level = {"scale": 1.0}

    def fn(x, by):
        calls.append(1)
        return level["scale"] * x**by

    x = jnp.asarray(3.0)
    assert float(compute(fn, x, 2)) == 9
    assert float(compute(fn, x, 3)) == 27
    level["scale"] = 2.0
    assert float(compute(fn, x, 2)) == 18


def test_programs_of_equal_key_are_equal_and_nothing_else_is():
    program = trace(lambda x: x, X).program
    assert program == program
    assert program != "program"
    assert isinstance(program, Program)
    assert isinstance(trace(lambda x: x, X), Traced)


def test_a_rule_for_many_lanes_is_part_of_the_program():
    """That of the library's simplex stays what it is; another one may read whatever it likes."""
    project = lambda: trace(lambda x: nx.projections.simplex(x), X).program
    assert project() == project()

    @jax.custom_batching.custom_vmap
    def double(x):
        return 2 * x

    double.def_vmap(lambda size, batched, x: (2 * x, batched[0]))
    assert trace(lambda x: double(x), X).program != trace(lambda x: double(x), X).program


def test_origins_follow_calls():
    inner = jax.jit(lambda a, b: (b, a * 2))
    jaxpr = jax.make_jaxpr(lambda a, b, c: (*inner(a, b), c + 1, 4.0))(1.0, 2.0, 3.0).jaxpr
    origins = origins_of(jaxpr)
    assert [o.copy_of for o in origins] == [1, None, None, None]
    assert [sorted(o.arguments) for o in origins] == [[1], [0], [2], []]


def test_shapes_print_as_a_tree_and_know_their_sizes():
    shapes = shapes_of({"a": jnp.zeros((2, 3)), "b": (jnp.zeros(4), jnp.zeros((), jnp.int32))})
    assert str(shapes) == "{a: float64[2,3], b: (float64[4], int32[])}"
    assert (shapes.sizes, shapes.size) == ((6, 4, 1), 11)
    assert shapes_of(shapes.structs()) == shapes
