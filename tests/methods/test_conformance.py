"""Every method of the library passes the suite that is offered for methods of one's own."""

import pytest

import nestax as nx
from nestax.registry import classes

VARIANTS = {
    "SCSC single-point": nx.SCSC(mode="single-point"),
    "AdjointSMVR fresh": nx.AdjointSMVR(mode="fresh"),
    "PMVR fresh": nx.PMVR(mode="fresh"),
    "PMM of means": nx.PMM(per_draw=False),
}


@pytest.mark.parametrize("name", [*classes(), *VARIANTS])
def test_conforms(name):
    assert len(nx.testing.check_method(VARIANTS.get(name) or getattr(nx, name))) == 4
