"""Progress in a notebook, which needs no widgets; IPython is played by a few lines."""

import sys
import types

import pytest

import nestax.run.progress as progress


class Handle:
    def __init__(self, shown):
        self.shown = shown

    def update(self, thing):
        self.shown.append(thing)


@pytest.fixture
def shown(monkeypatch):
    """What a notebook shows, one after the other; every HTML is its text."""
    shown = []

    def display(thing, display_id):
        shown.append(thing)
        return Handle(shown)

    ipython = types.ModuleType("IPython")
    ipython.get_ipython = lambda: types.SimpleNamespace(kernel=object())
    inside = types.ModuleType("IPython.display")
    inside.HTML = str
    inside.display = display
    monkeypatch.setitem(sys.modules, "IPython", ipython)
    monkeypatch.setitem(sys.modules, "IPython.display", inside)
    return shown


def test_a_bar_moves_in_one_place_and_goes(shown, monkeypatch):
    monkeypatch.setattr(progress, "QUICK_SECONDS", 0.0)
    with progress.progress_line(2_000_000, None, True) as show:
        show(1_000_000, {"value": 1.5})
        show(1_500_000, {"value": 2e6})
    assert shown[0].startswith("<progress value=1000000 max=2000000></progress>")
    assert "1,500,000 of 2,000,000 steps" in shown[1]
    assert "s left  value 2,000,000<" in shown[1]
    assert shown[2:] == [""]


def test_a_quick_run_leaves_nothing_behind(shown):
    with progress.progress_line(10, None, True) as show:
        show(10, {"step": 10})
    assert not shown


def test_there_is_no_bar_where_none_is_wanted(shown, monkeypatch):
    monkeypatch.setattr(progress, "QUICK_SECONDS", 0.0)
    for wanted, first in ((False, True), (None, False)):
        with progress.progress_line(10, wanted, first) as show:
            show(5, {"value": 1.0})
            show(10, {"value": 1.0})
    assert not shown


def test_ipython_on_a_terminal_is_no_notebook(monkeypatch):
    ipython = types.ModuleType("IPython")
    ipython.get_ipython = lambda: types.SimpleNamespace()
    monkeypatch.setitem(sys.modules, "IPython", ipython)
    assert not progress.in_notebook()
