"""Learning rates that a method is given where it has none of its own."""

import pytest
from tests.support.cases import noisy

import nestax as nx
from nestax.steps.descent import step_of, with_rate


@pytest.mark.parametrize(
    ("method", "lr"),
    [
        (nx.SMVR(beta=0.1), 0.3),
        (nx.SMVR(beta=0.1, lr=0.2), 0.2),
        (nx.NASA(), None),  # its step has lengths of its own
    ],
)
def test_a_rate_is_given_to_a_method_that_has_none_and_takes_plain_steps(method, lr):
    given = with_rate(method, noisy("two_levels").problem, 0.3)
    assert given.lr == (lr if lr is None else pytest.approx(lr))


def test_a_method_without_a_step_of_its_own_takes_plain_ones():
    problem = noisy("two_levels").problem
    assert step_of(nx.Plain(), problem).lr == pytest.approx(0.1)
    assert step_of(nx.Plain(lr=0.2), problem).lr == pytest.approx(0.2)
