"""What methods cost: restarts are drawn in full and counted, outer levels cost what they need."""

import numpy as np
import pytest
from tests.support.cases import noisy
from tests.support.drive import BATCH, STEPS

import nestax as nx


def columns(estimator, name="three_levels", **more):
    records = nx.minimize(
        noisy(name).problem,
        estimator,
        nx.steps.Descent(0.01),
        steps=STEPS,
        batch_size=BATCH,
        init_batch_size=5,
        record=["value"],
        record_every=1,
        **more,
    ).records
    return np.stack([records[c] for c in ("samples", "value_calls", "derivative_calls")], axis=1)


def test_restart_batches_are_drawn_and_counted():
    """Three levels; 40 draws each at steps 0, 5 and 10, three draws at two points otherwise."""
    cost = columns(nx.NestedSPIDER(period=5, restart_batch=40))
    steps = np.arange(STEPS + 1)
    restarts = 1 + steps // 5
    expected = 3 * (
        40 * restarts[:, None] * np.ones(3)
        + BATCH * (steps - steps // 5)[:, None] * np.asarray([1, 2, 2])
    )
    np.testing.assert_array_equal(cost, expected)


@pytest.mark.parametrize(
    ("estimator", "inner", "outer"),
    [
        (nx.SCSC(0.1), (1, 2, 1), (1, 1, 1)),
        (nx.ATSCGD(), (2, 1, 1), (1, 0, 1)),
        (nx.SSD(), (2, 1, 2), (1, 0, 1)),
        (nx.NLASG(), (1, 1, 1), (1, 1, 1)),
        (nx.PMM(), (1, 1, 1), (1, 1, 1)),
    ],
)
@pytest.mark.filterwarnings("ignore::nestax.ConvergenceWarning")
def test_the_outermost_level_costs_what_it_needs(estimator, inner, outer):
    if isinstance(estimator, nx.SSD):
        problem = nx.problems.convex_chain(levels=3)
        records = nx.minimize(
            problem, estimator, steps=2, batch_size=BATCH, record=["value"], record_every=1
        ).records
        step = [np.diff(records[c])[0] for c in ("samples", "value_calls", "derivative_calls")]
    else:
        step = np.diff(columns(estimator), axis=0)[-1]
    np.testing.assert_array_equal(step, BATCH * (2 * np.asarray(inner) + np.asarray(outer)))


def test_a_table_method_pays_for_its_start():
    rows = np.random.default_rng(0).normal(size=(30, 3))
    levels = [nx.Level(lambda w, r: w * r, rows), nx.Level(lambda u: u @ u)]
    records = nx.minimize(
        nx.Problem(levels, w0=np.ones(3)), nx.CSAGA(), steps=4, batch_size=2, record=["value"]
    ).records
    assert records["samples"][0] == 30
    assert records["samples"][-1] == 30 + 4 * 2
