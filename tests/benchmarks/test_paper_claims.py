"""How the page on the paper's claims judges paired differences."""

import sys
from pathlib import Path

import numpy as np
import pytest

BENCHMARKS = Path(__file__).parent.parent.parent / "benchmarks"


@pytest.fixture(scope="module")
def claims():
    """Its modules read the command line as they are imported."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["paper_claims.py"])
        patch.syspath_prepend(str(BENCHMARKS))
        import paper_claims

        yield paper_claims


AROUND = np.asarray([-1.0, 1.0, -1.0, 1.0])  # a standard error of 0.577


@pytest.mark.parametrize(
    ("means", "verdict"),
    [((-1.2, -3), "holds"), ((-1.1, -3), "open"), ((-3, 1.2), "fails"), ((-3, 1.1), "open")],
)
def test_two_standard_errors_decide(claims, means, verdict):
    assert claims.judge([mean + AROUND for mean in means]) == verdict


def test_the_difference_is_that_to_the_best_rival(claims):
    own = np.asarray([0.5, 0.7, 0.6, 0.8])
    rivals = {"far": own + 3, "near": own + 2 + 0.1 * AROUND, "diverged": np.full(4, np.inf)}
    best, difference, verdict = claims.row_of(own, rivals, 1, 10.0, 1)
    assert (best, difference, verdict) == ("near", "-20.0 ± 0.6", "holds")
    assert claims.row_of(own, rivals, -1, 1.0, 0) == ["far", "-3 ± 0", "fails"]
    lost = np.asarray([0.5, np.inf, 0.6, 0.8])
    assert claims.row_of(lost, rivals, 1, 1.0, 0) == ["–", "1 of 4 runs diverged", "fails"]
    assert claims.row_of(own, {"diverged": lost}, 1, 1.0, 0)[2] == "holds"
    assert claims.row_of(lost, {"diverged": lost}, 1, 1.0, 0) == ["–", "1 of 4 runs diverged", "open"]


def test_the_page_shows_what_is_kept(claims):
    text = (BENCHMARKS.parent / "docs" / "paper-claims.md").read_text()
    for name, table in claims.tables().items():
        shown = text.split(f"<!-- {name}: begin -->\n")[1].split(f"\n<!-- {name}: end -->")[0]
        assert shown == table.to_markdown()
