"""N(ε): the criterion, the choice of settings, the exponent, and one small measurement."""

import dataclasses
import math

import numpy as np
import pytest

import nestax as nx

from experiments.complexity import Point, complexity, exponent, first_at_most, ratio, running_mean
from experiments.sloped_chain import sloped_chain
from experiments.zero_chain import zero_chain


def points(p, counts=1.0, spread=0.0):
    """Points of N(ε) = ε^(−p), with resampled counts around them."""
    rng = np.random.default_rng(0)
    return [
        Point(
            eps,
            counts * eps**-p,
            tuple(counts * eps**-p * np.exp(spread * rng.standard_normal(200))),
            1,
            1,
            True,
            eps,
            1,
        )
        for eps in (0.2, 0.1, 0.05, 0.025, 0.0125)
    ]


def test_the_exponent_is_that_of_the_counts():
    assert exponent(points(3.0)) == pytest.approx((3, 3, 3))
    value, low, high = exponent(points(4.0, 7.0, spread=0.1))
    assert value == pytest.approx(4)
    assert low < 4 < high < low + 0.3


def test_only_the_smallest_accuracies_count_and_three_are_needed():
    start = Point(0.4, 1e9, (1e9,) * 200, 1, 1, True, 0.4, 1)
    assert exponent([start, *points(3.0)]) == pytest.approx((3, 3, 3))
    assert all(map(math.isnan, exponent(points(3.0)[:2])))
    lost = Point(0.01, math.inf, (), 1, 1, True, 0.02, 0)
    assert exponent([*points(3.0), lost])[0] == pytest.approx(3)


def test_resampled_runs_that_do_not_arrive_leave_no_upper_end():
    some = points(3.0)
    some[-1] = Point(0.0125, 0.0125**-3, (0.0125**-3,) * 190 + (math.inf,) * 10, 1, 1, True, 0.01, 1)
    assert exponent(some)[1:] == (pytest.approx(3), math.inf)


def test_the_criterion_is_a_mean_over_the_steps_so_far():
    records = {"grad_norm": np.asarray([[[9.0, 4, 2, 0, 6], [9.0, 4, np.nan, 0, 0]]])}
    run = nx.Sweep({}, None, records, np.zeros((1, 2)))
    np.testing.assert_array_equal(running_mean(run)[0], [[4, 3, 2, 3], [4, *[np.inf] * 3]])
    assert first_at_most(np.asarray([4.0, 3, 2, 3]), 2) == 2
    assert first_at_most(np.asarray([4.0, 3, 2, 3]), 1) == math.inf


def test_methods_are_set_against_each_other_on_the_same_resampled_seeds():
    noise = np.exp(np.random.default_rng(0).standard_normal(200))
    one, other = (Point(0.1, n, tuple(n * noise), 1, 1, True, 0.1, 1) for n in (300.0, 100.0))
    assert ratio(one, other) == pytest.approx((3, 3, 3))
    late = dataclasses.replace(one, again=(math.inf, *one.again[1:]))
    assert ratio(late, other) == pytest.approx((3, 3, 3))
    late = dataclasses.replace(one, again=(math.inf,) * 10 + one.again[10:])
    assert ratio(late, other)[2] == math.inf


def measured(method, family, **more):
    return list(complexity(method, family, seeds=3, tune_seeds=2, longest=2**12, **more))


def test_a_small_measurement():
    family = lambda eps: sloped_chain(eps, 2)
    found = measured("SMVR", family, accuracies=(0.2, 0.14))
    assert [point.eps for point in found] == [0.2, 0.14]
    for point in found:
        assert 0 < point.samples < 4 * max(point.steps, 8 * 1024)
        assert point.least <= point.eps
        assert len(point.again) == 200
    # What is returned is the criterion on the reported seeds.
    last = found[-1]
    again = nx.sweep(
        family(0.14),
        lambda s: (nx.SMVR(last.knob), nx.steps.Descent(last.lr)),
        settings=nx.grid(none=[0]),
        seeds=3,
        steps=8 * 1024,
        batch_size=1,
        record_every=8,
        record=["grad_norm"],
        progress=False,
    )
    norms = again.records["grad_norm"][0, :, 1:].mean(axis=0)
    means = np.cumsum(norms) / np.arange(1, len(norms) + 1)
    assert again.records["samples"][1:][np.flatnonzero(means <= 0.14)[0]] == last.samples
    # What is there already is not measured again.
    assert measured("SMVR", family, accuracies=(0.2, 0.14), found=found[:1]) == found[1:]


def test_an_accuracy_out_of_reach_ends_the_search():
    family = lambda eps: sloped_chain(eps, 2, bowl="asymmetric")
    found = measured("Plain", family, accuracies=(0.05, 0.03))
    assert [point.samples for point in found] == [math.inf]
    assert found[0].least > 0.05
    assert measured("Plain", family, accuracies=(0.05, 0.03), found=found) == []


def test_an_accuracy_that_other_seeds_do_not_reach_does_not_end_it():
    missed = Point(0.2, math.inf, (), 1, 1, True, 0.1, steps=16)
    (point,) = measured("Plain", zero_chain, accuracies=(0.3, 0.25), found=[missed])
    assert point.eps == 0.25


def test_of_settings_that_arrive_together_an_inner_one_is_taken():
    (point,) = measured("Plain", zero_chain, accuracies=(0.25,))
    assert point.inside
    assert point.lr < 8


def test_averages_of_weights_are_what_a_method_is_judged_by_that_returns_them():
    (point,) = measured("SSD", sloped_chain, accuracies=(0.2,))
    again = nx.sweep(
        sloped_chain(0.2),
        lambda s: nx.SSD(lr=lambda count: 1 / (2 / (s.lr * (count + 1)) + 1 / s.knob)),
        settings=nx.grid(lr=[point.lr], knob=[point.knob]),
        seeds=3,
        steps=64 * 1024,
        batch_size=1,
        record_every=64,
        record=["grad_norm"],
        progress=False,
    )
    means = running_mean(again)[0].mean(axis=0)
    assert again.records["samples"][1:][np.flatnonzero(means <= 0.2)[0]] == point.samples
