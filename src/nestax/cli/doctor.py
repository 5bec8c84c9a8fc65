"""``nestax doctor``: what nestax finds on this machine, and what of it will be slow."""

import importlib.util
import json
import os
from pathlib import Path
from typing import Any

import typer

from nestax.cli.shell import note
from nestax.compiling import SMALL_LOOPS, keeps_programs, speed_up
from nestax.datasets import fetching
from nestax.report import environment
from nestax.table import Table

#: Packages of every extra, and what is missed without them.
EXTRAS = {
    "plot": (("matplotlib", "jinja2"), "no figures and no reports"),
    "sklearn": (("sklearn",), "no estimators with fit and no nestax classify"),
    "data": (
        ("pooch", "pyarrow", "pandas", "openpyxl", "PIL"),
        "no downloads, no to_frame(), no Parquet files, Excel or images",
    ),
    "orbax": (("orbax",), "no checkpoints of large state that lies in several processes"),
    "grain": (("grain",), "no loaders of Grain for streams"),
    "flax": (("flax",), "no nestax.nnx"),
    "torch": (("torch",), "no nestax.torch"),
}
#: Extras whose absence is worth a warning: the commands use them.
OF_COMMANDS = ("plot", "sklearn", "data")


def examine(as_json: bool) -> None:
    """Prints what was found, and a warning for whatever is slow or missing."""
    kept = speed_up()  # before anything starts JAX
    facts_found = environment()
    missing = {
        extra: lack
        for extra, (packages, lack) in EXTRAS.items()
        if not all(importlib.util.find_spec(name) for name in packages)
    }
    compiled_once = "no: NESTAX_COMPILED is empty, or no folder can be written to"
    if kept is not None:  # a program is compiled to see
        compiled_once = "yes, it works" if keeps_programs(kept) else f"no: {kept} gets no files"
    small_loops = SMALL_LOOPS in os.environ.get("XLA_FLAGS", "")
    facts = {
        **{key: value for key, value in facts_found.items() if key != "made"},
        "extras": ", ".join(extra for extra in EXTRAS if extra not in missing) or "none",
        "extras not here": ", ".join(missing) or "none",
        "data folder": _folder(os.environ.get("NESTAX_DATA"), "NESTAX_DATA is not set"),
        "compiled programs": _folder(kept, "they are not kept"),
        "compiled once": compiled_once,
        "small loops": "compiled as one piece" if small_loops else "as XLA has them",
        "cache folder": _folder(fetching.cache(), "no pooch, so no downloads"),
        "data sets": _data_sets(),
    }
    warnings = _warnings(facts_found, missing)
    if as_json:
        typer.echo(json.dumps({**facts, "warnings": warnings}, ensure_ascii=False))
        return
    typer.echo(Table(["what", "found"], [[key, str(value)] for key, value in facts.items()]))
    for warning in warnings:
        note(warning)


def _folder(path: str | Path | None, without: str) -> str:
    if not path:
        return f"– ({without})"
    if not Path(path).is_dir():
        return f"{path} (does not exist)"
    count = len(list(Path(path).iterdir()))
    return f"{path} ({count} file{'' if count == 1 else 's'})"


def _data_sets() -> str:
    try:
        table = fetching.available()
    except ValueError as error:
        return str(error)
    kept = [row[0] for row in table.rows if row[table.columns.index("local copy")] != "–"]
    return ", ".join(kept) or "none on this machine"


def _warnings(found: dict[str, Any], missing: dict[str, str]) -> list[str]:
    out = []
    if found["device"].startswith("cpu"):
        out.append("No GPU: large sweeps are slow. pip install 'jax[cuda13]' where there is one.")
    if found["precision"] == "float32":
        out.append(
            "float32: gaps below 1e-7 drown in rounding. Set JAX_ENABLE_X64=1 for float64 in Python; "
            "the commands compute in float64 anyway."
        )
    if found["cores"] == 1:
        out.append("One processor core: compiling and sweeps take about twice as long as on two.")
    for extra, lack in missing.items():
        if extra not in OF_COMMANDS:
            continue
        out.append(f"The extra {extra} is missing, so {lack}: pip install 'nestax[{extra}]'.")
    return out
