"""Functions that behave alike share a compilation; functions that do not never do."""

import functools

import numpy as np
import optax

from nestax.loop.same_program import Static

SCALE = 2.0


def make(number):
    return lambda x: number * x


def uses_global(x):
    return SCALE * x


def test_equal_closures_are_equal():
    assert Static(make(1.0)) == Static(make(1.0))
    assert hash(Static(make(1.0))) == hash(Static(make(1.0)))
    assert Static(make(1.0)) != Static(make(2.0))
    assert Static(make(1)) != Static(make(1.0))


def test_optax_optimisers_are_equal_when_their_numbers_are():
    assert Static(optax.adam(0.1)) == Static(optax.adam(0.1))
    assert Static(optax.adam(0.1)) != Static(optax.adam(0.2))
    assert Static(optax.adam(0.1)) != Static(optax.adam(0.1, b1=0.8))
    assert Static(optax.sgd(optax.constant_schedule(0.1))) == Static(
        optax.sgd(optax.constant_schedule(0.1))
    )


def test_one_object_is_one_function_whatever_happens_around_it(monkeypatch):
    before = Static(uses_global)
    monkeypatch.setitem(globals(), "SCALE", 3.0)
    assert before == Static(uses_global)
    calls = []
    counting = lambda x: calls.append(x)
    before = Static(counting)
    calls.append(1)
    assert before == Static(counting)


def test_a_changed_global_makes_another_function_of_equal_code(monkeypatch):
    fresh = lambda: lambda x: SCALE * x
    nested = lambda: lambda x: (lambda y: SCALE * y)(x)
    before = Static(fresh()), Static(nested())
    assert before == (Static(fresh()), Static(nested()))
    monkeypatch.setitem(globals(), "SCALE", 3.0)
    assert before[0] != Static(fresh())
    assert before[1] != Static(nested())


def test_a_changed_container_makes_another_function_of_equal_code():
    settings = {"rate": 0.1}
    fresh = lambda: lambda x: settings["rate"] * x
    before = Static(fresh())
    assert before == Static(fresh())
    settings["rate"] = 0.2
    assert before != Static(fresh())


def test_arrays_in_closures_go_by_identity():
    a, b = np.ones(3), np.ones(3)
    assert Static(make(a)) == Static(make(a))
    assert Static(make(a)) != Static(make(b))


def test_defaults_partials_and_methods_count():
    assert Static(functools.partial(max, 1)) == Static(functools.partial(max, 1))
    assert Static(functools.partial(max, 1)) != Static(functools.partial(max, 2))
    assert Static(lambda x, k=1: x) != Static(lambda x, k=2: x)
    assert Static([].append) != Static([].append)


def test_recursive_functions_have_a_key():
    def factorial(n):
        return 1 if n == 0 else n * factorial(n - 1)

    assert Static(factorial) == Static(factorial)
