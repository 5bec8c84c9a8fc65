"""Whatever is typed, nestax answers with a sentence of its own, the one in docs/messages.md."""

import re
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
from bad_inputs import CASES, PAGE, answer, made

KINDS = {
    "ProblemError",
    "SettingError",
    "AttributeError",
    "UserWarning",
    "ConvergenceWarning",
    "exit code 2",
}
TYPED = [case for cases in CASES.values() for case in cases]
#: What one reads of things that JAX, NumPy and Python say to those who know their insides.
RAW = re.compile(r"Traceback|Tracer|tracer|0x[0-9a-f]{6}|jaxpr|aval")


@pytest.fixture(scope="module")
def space():
    return made()


@pytest.mark.parametrize("case", TYPED)
def test_an_input_that_cannot_be_used_gets_a_sentence(case, space, tmp_path, monkeypatch):
    (tmp_path / "notes.txt").write_text("not made by a run")
    monkeypatch.chdir(tmp_path)
    told = answer(case, space)
    first = told.words.splitlines()[0]
    assert told.ours, told
    assert told.kind in KINDS, told
    assert not RAW.search(told.words), told
    assert first.endswith((".", "?")) or case.startswith("nestax "), told
    assert f"| `{case}` | {first} |" in PAGE.read_text(), "python tests/messages/bad_inputs.py"


def test_there_are_at_least_sixty_and_no_other_on_the_page():
    assert len(set(TYPED)) == len(TYPED) >= 60
    assert PAGE.read_text().count("| `") == len(TYPED)
