"""Every law speaks about every method, or says why it does not."""

import pytest
from tests.support.methods import LAWS, Law, every_method, unsaid

from nestax.estimators.registry import classes


def test_every_method_has_an_instance():
    """Under a name that begins with that of its class."""
    kinds = {name: type(method).__name__ for name, method in every_method().items()}
    assert all(name.split()[0] == kind for name, kind in kinds.items())
    assert set(kinds.values()) == {*classes(), "PerBlock"}


@pytest.mark.parametrize("name", LAWS)
def test_a_law_covers_a_method_or_says_why_not(name):
    assert unsaid(LAWS[name]) == set()


@pytest.mark.parametrize("name", LAWS)
def test_a_law_speaks_only_about_methods_that_exist(name):
    covers, exceptions = LAWS[name]
    assert set(covers) <= set(every_method())
    assert set(exceptions) <= {*classes(), "PerBlock", *every_method()}
    about = {word for instance in LAWS[name].left_out() for word in (instance, instance.split()[0])}
    assert set(exceptions) <= about, "an exception about nothing"
    assert all(reason.strip() for reason in exceptions.values())


def test_a_method_that_is_forgotten_is_missed():
    covers = dict.fromkeys(name for name in every_method() if name != "SCSC single-point")
    assert unsaid(Law(covers, {})) == {"SCSC single-point"}
    assert unsaid(Law(covers, {"SCSC": "some reason"})) == set()
