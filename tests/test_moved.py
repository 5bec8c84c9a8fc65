"""Names that have moved work, and say where they are now."""

import importlib
import operator
import subprocess
import sys

import pytest

import nestax as nx
from nestax import moved


@pytest.mark.parametrize("name", moved.NAMES)
def test_old_names_are_the_new_ones_with_a_warning(name):
    new = moved.NAMES[name]
    with pytest.warns(DeprecationWarning, match=f"nestax.{name} is now nestax.{new}; .* version 0.3"):
        old = operator.attrgetter(name)(nx)
    module, _, attribute = new.rpartition(".")
    assert old is getattr(importlib.import_module(f"nestax.{module}"), attribute)
    assert name not in nx.__all__


def test_old_modules_of_the_documentation_can_be_imported():
    with pytest.warns(DeprecationWarning, match="nestax.tracking.storm is now nestax.parts.storm"):
        from nestax.tracking import storm
    assert storm is nx.parts.storm
    with pytest.warns(DeprecationWarning, match="nestax.estimator.Calls is now nestax.parts.Calls"):
        from nestax.estimator import Calls
    assert Calls is nx.parts.Calls


def test_the_warning_points_at_the_line_that_uses_the_name(tmp_path):
    script = tmp_path / "old.py"
    script.write_text("import nestax as nx\n\nnx.halving\n")
    told = subprocess.run(
        [sys.executable, "-W", "always", str(script)], capture_output=True, text=True, check=True
    ).stderr
    assert f"{script}:3: DeprecationWarning: nestax.halving is now nestax.theory.halving" in told


def test_the_release_without_them_is_not_out_yet():
    """Deprecated in this release, gone with the next but one."""
    number = lambda words: tuple(map(int, words.split(".")[:2]))
    assert number(nx.__version__) < number(moved.GONE)
