"""Files that cannot be used: one sentence, exit code 2, nothing written; nothing is compiled for it."""

import pytest
from typer.testing import CliRunner

from nestax.cli import app

GOOD = ["date,A,B", "2024-01-01,0.1,0.2", "2024-01-02,-0.1,0.3", "2024-01-03,0.2,-0.2"]


def changed(line: int, words: str) -> str:
    return "\n".join([*GOOD[:line], words, *GOOD[line + 1 :]]) + "\n"


BAD = {
    "empty": ("", "is empty"),
    "a header alone": ("date,A,B\n", "no rows"),
    "ragged": (changed(2, "2024-01-02,-0.1"), "line 3 has 2"),
    "text": (changed(2, "2024-01-02,high,0.3"), "line 3"),
    "a column without numbers": (
        "date,A,B\n2024-01-01,0.1,\n2024-01-02,0.2,nan\n",
        "in column 'B'",
    ),
    "a missing cell": (changed(2, "2024-01-02,,0.3"), "line 3"),
    "a date twice": (changed(3, "2024-01-02,0.2,-0.2"), "line 4"),
    "one asset": ("date,A\n2024-01-01,0.1\n2024-01-02,0.2\n", "2 assets"),
    "one row": ("date,A,B\n2024-01-01,0.1,0.2\n", "2 rows"),
    "a column that never changes": ("A,B\n0.1,0.2\n0.1,0.3\n0.1,0.4\n", "never changes"),
    "1e300": (changed(2, "2024-01-02,1e300,0.3"), "a million percent"),
    "infinity": (changed(2, "2024-01-02,inf,0.3"), "line 3"),
    "semicolons": ("\n".join(GOOD).replace(",", ";"), "separated by semicolons"),
    "UTF-16": ("\n".join(GOOD).encode("utf-16"), "UTF-16"),
}


def refuse(arguments: list[str], tmp_path) -> str:
    """The one line on standard error."""
    out = tmp_path / "out"
    done = CliRunner().invoke(app, ["portfolio", *arguments, "--out", str(out)])
    assert done.exit_code == 2, done.output
    assert done.stdout == ""
    assert not out.exists()
    (line,) = done.stderr.splitlines()
    assert line.startswith("nestax portfolio: ")
    return line


@pytest.mark.parametrize("kind", BAD)
def test_one_sentence_says_what_is_wrong_and_where(kind, tmp_path):
    content, words = BAD[kind]
    path = tmp_path / "returns.csv"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    line = refuse([str(path), "--unit", "percent"], tmp_path)
    assert words in line
    assert "returns.csv" in line


def test_a_missing_file(tmp_path):
    line = refuse([str(tmp_path / "none.csv"), "--unit", "percent"], tmp_path)
    assert "there is no file" in line
    assert "industry10" in line


def test_a_directory(tmp_path):
    assert "is a folder" in refuse([str(tmp_path), "--unit", "percent"], tmp_path)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "--unit percent, or --unit fraction"),
        (["--unit", "percent", "--prices"], "prices have none"),
        (["--unit", "percent", "--method", "SMVRR"], "did you mean 'SMVR'?"),
        (["--unit", "percent", "--risk", "-1"], "risk must be"),
        (["--unit", "percent", "--constraint", "box"], "needs --low or --high"),
        (
            ["--unit", "percent", "--constraint", "budget", "--low", "0.1"],
            "belong to --constraint box",
        ),
        (["--unit", "percent", "--constraint", "budget", "--risk", "0"], "risk must be"),
        (["--prices"], "prices that are not positive"),
    ],
)
def test_settings_that_do_not_fit(arguments, words, tmp_path):
    path = tmp_path / "returns.csv"
    path.write_text("\n".join(GOOD))
    assert words in refuse([str(path), *arguments], tmp_path)


def test_named_data_has_its_unit(tmp_path):
    assert "leave out --unit" in refuse(["synthetic", "--unit", "percent"], tmp_path)
    assert "10, 12, 17, 30" in refuse(["industry11"], tmp_path)


def test_the_folder_is_looked_at_before_the_file(tmp_path):
    (tmp_path / "notes.txt").write_text("mine")
    done = CliRunner().invoke(app, ["portfolio", "none.csv", "--out", str(tmp_path)])
    assert done.exit_code == 2
    assert "notes.txt, which no run wrote" in done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]
