"""What the commands share: errors as one sentence, defaults from a file, results on their way out.

Nothing here imports JAX before a command runs.
"""

import csv
import dataclasses
import difflib
import enum
import importlib
import inspect
import json
import math
import os
import shlex
import signal
import sys
import tomllib
import warnings
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

import typer
import typer.core

from nestax.table import Table

#: Where the command line is kept for the report, and what of it is no setting of the run.
ARGUMENTS = "nestax.arguments"
DELIVERY = ("out", "overwrite", "json", "config", "checkpoint", "resume")
#: Options that name a folder.
FOLDERS = ("out", "checkpoint")
#: Where the folder of --checkpoint is kept for messages, and the file in it with the command line.
KEPT_IN = "nestax.checkpoint"
COMMAND = "command.json"
#: The exit code of what Ctrl-C has ended, as shells have it.
INTERRUPTED = 128 + signal.SIGINT


Options = TypeVar("Options")


class Group(typer.core.TyperGroup):
    """Commands whose refusals are one sentence on standard error and exit code 2."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        ctx.meta.setdefault(ARGUMENTS, list(args))
        return super().parse_args(ctx, args)

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except (ValueError, OSError, ImportError) as error:
            sentence = _sentence(error)
            if sentence is None:
                raise
            note(f"{ctx.command_path} {ctx.invoked_subcommand}: {sentence}")
            raise typer.Exit(2) from None
        except typer.BadParameter as error:
            error.message = error.message.removeprefix("Value error, ")  # so Typer's checker speaks
            raise
        except KeyboardInterrupt:
            note(f"{ctx.command_path} {ctx.invoked_subcommand}: interrupted.{_way_on(ctx)}")
            raise typer.Exit(INTERRUPTED) from None


def _sentence(error: Exception) -> str | None:
    """Returns what is wrong in the words of who typed the command; None if it is a fault of ours."""
    if isinstance(error, BrokenPipeError | ModuleNotFoundError):
        return None
    if isinstance(error, OSError):
        return f"{error.filename} cannot be used: {error.strerror}." if error.filename else f"{error}."
    if isinstance(error, ImportError):
        return str(error)
    from nestax.errors import ProblemError, SettingError

    return str(error) if isinstance(error, ProblemError | SettingError) else None


def read_config(ctx: typer.Context, path: Path | None) -> Path | None:
    """Callback of ``--config``: what the file says becomes the default of every option."""
    if path is None or ctx.resilient_parsing:
        return path
    known = {str(param.name) for param in ctx.command.params} - {"config", "help"}
    several = {param.name for param in ctx.command.params if getattr(param, "multiple", False)}
    defaults = {}
    for key, value in _toml(path).items():
        name = key.replace("-", "_")
        if name not in known or isinstance(value, dict):
            from nestax.errors import SettingError

            near = difflib.get_close_matches(name, known, n=1)
            options = ", ".join(word.replace("_", "-") for word in near or sorted(known))
            hint = f"did you mean {options}?" if near else f"there are {options}."
            raise SettingError(f"{path}: {ctx.info_name} has no setting {key!r}; {hint}")
        words = ",".join(map(str, value)) if isinstance(value, list) else value
        defaults[name] = [str(words)] if name in several else words
    ctx.default_map = defaults
    return path


def _toml(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:  # no TOML, or no text at all
        from nestax.errors import SettingError

        raise SettingError(f"{path} is no TOML file: {error}.") from None


@dataclasses.dataclass(frozen=True)
class Outcome:
    """What a command has found.

    title, summary: the heading, and a sentence with the numbers that matter.
    tables: pairs of caption and table, printed and in the report.
    numbers: what ``--json`` prints.
    records: by file name, tables or columns for the folder of the run.
    draw: makes the figures, triples of name, caption and figure; called only if they are wanted.
    found: settings that the command has chosen itself.
    status: a ``Status``; None is success. ``message`` is its sentence.
    """

    title: str
    summary: str
    tables: list[tuple[str, Table]]
    numbers: dict[str, Any]
    records: dict[str, Any]
    draw: Callable[[], list[tuple[str, str, Any]]]
    found: dict[str, Any] = dataclasses.field(default_factory=dict)
    status: Any = None
    message: str = ""


def begin(ctx: typer.Context, *, float64: bool = True) -> dict[str, Any]:
    """The settings of the command, once everything is in place for its results.

    In float64 from here, but for networks, which gain nothing from it and are slow in it on a GPU.
    """
    import jax

    import nestax.report as report
    from nestax.compiling import speed_up

    with warnings.catch_warnings(action="ignore"):  # a command called from Python may be late
        speed_up()
    for name in FOLDERS:  # text in older versions of Typer
        if isinstance(ctx.params.get(name), str):
            ctx.params[name] = Path(ctx.params[name])
    if ctx.params["out"] is not None:
        try:
            report.require()
        except ImportError as error:
            if str(ctx.get_parameter_source("out")) != "ParameterSource.DEFAULT":
                raise
            note(f"There will be no report: {error}")
            ctx.params["out"] = None
        else:
            report.check_folder(ctx.params["out"], ctx.params["overwrite"])

    if float64:
        jax.config.update("jax_enable_x64", True)
    if ctx.params.get("devices") is not None:
        _cores_as_devices(ctx.params["devices"])
    if not sys.stderr.isatty():  # where there is no line of progress
        _say_once(ctx)
    return settings_of(ctx)


def _cores_as_devices(count: int) -> None:
    """Makes so many devices of a processor, where JAX has not begun and nobody has said how many."""
    import jax

    if "xla_force_host_platform_device_count" not in os.environ.get("XLA_FLAGS", ""):
        with suppress(RuntimeError):  # whoever calls a command from Python has computed already
            jax.config.update("jax_num_cpu_devices", count)
    if count > len(jax.devices()):
        from nestax.errors import SettingError

        raise SettingError(f"--devices {count} asks for more than the {len(jax.devices())} there are.")


def _say_once(ctx: typer.Context) -> None:
    """Lets the first run of a command say that it compiles, to those who wait behind a pipe."""
    from nestax.run.progress import ALOUD

    said: set[str] = set()

    def say(words: str) -> None:
        if words not in said:
            note(f"{ctx.command_path}: {words}")
        said.add(words)

    before = ALOUD.set(say)
    ctx.call_on_close(lambda: ALOUD.reset(before))


def command(app: typer.Typer, module: str) -> Callable[[type[Options]], type[Options]]:
    """Registers a dataclass of options as a command that ``run(options)`` of a module carries out.

    The module is imported when the command runs, for it imports JAX.
    """

    def register(options: type[Options]) -> type[Options]:
        def call(ctx: typer.Context, **settings: Any) -> None:
            begin(ctx)
            if "checkpoint" in settings:
                keep(ctx)
            finish(ctx, importlib.import_module(module).run(options(**settings)))

        signature = inspect.signature(options)

        def inherited(parameter: inspect.Parameter) -> bool:
            return parameter.name not in options.__annotations__

        context = inspect.signature(call).parameters["ctx"]
        parameters = [context, *sorted(signature.parameters.values(), key=inherited)]
        call.__signature__ = signature.replace(parameters=parameters, return_annotation=None)  # pyright: ignore[reportFunctionMemberAccess]
        call.__doc__ = options.__doc__
        app.command(options.__name__.lower())(call)
        return options

    return register


def settings_of(ctx: typer.Context) -> dict[str, Any]:
    """Returns every setting of the run as it counts, in the order of the help."""
    names = [str(param.name) for param in ctx.command.params]
    values = {name: ctx.params[name] for name in names if name in ctx.params and name not in DELIVERY}
    return {name: x.value if isinstance(x, enum.Enum) else x for name, x in values.items()}


def finish(ctx: typer.Context, outcome: Outcome) -> None:
    """Prints what was found, writes the folder if one was asked for, and fails if the run did."""
    from nestax.loop.status import Status
    from nestax.report import write_run

    status = outcome.status or Status.SUCCESS
    message = outcome.message or status.value
    if ctx.params["json"]:
        facts = {"status": status.name, "message": message, **outcome.numbers}
        typer.echo(json.dumps(_finite(facts), ensure_ascii=False, allow_nan=False))
    else:
        typer.echo("\n\n".join(f"{caption}\n\n{table}" for caption, table in outcome.tables))
        typer.echo(f"\n{outcome.summary}")
    if ctx.params["out"] is not None:
        page = write_run(
            ctx.params["out"],
            title=outcome.title,
            summary=outcome.summary,
            command=command_line(ctx),
            settings=settings_of(ctx) | outcome.found,
            tables=outcome.tables,
            figures=outcome.draw(),
            records=outcome.records,
            status=status,
            message=message,
            overwrite=ctx.params["overwrite"],
        )
        note(f"Written: {page}")
    if status is not Status.SUCCESS:
        way_on = _way_on(ctx) if status is Status.INTERRUPTED else ""
        note(f"{ctx.command_path}: {message}{way_on}")
        raise typer.Exit(1)


def keep(ctx: typer.Context) -> None:
    """Writes the command line into the folder of --checkpoint, for ``nestax resume``."""
    from nestax.checkpoints import files
    from nestax.errors import SettingError

    folder = ctx.params["checkpoint"]
    resume = ctx.params["resume"]
    if folder is None:
        if resume:
            raise SettingError("--resume needs the folder of the run: give --checkpoint as well.")
        return
    path = folder / COMMAND
    if not path.exists():
        folder.mkdir(parents=True, exist_ok=True)
        line = {"arguments": ctx.meta[ARGUMENTS], "folder": os.getcwd()}
        files.write(path, json.dumps(line).encode(), files.Files())
    elif not resume:
        raise SettingError(
            f"{folder} holds a run already: go on with it by nestax resume {folder}, or choose another "
            "folder."
        )
    ctx.meta[KEPT_IN] = folder


def repeat(ctx: typer.Context, folder: Path, out: Path | None) -> None:
    """Shows the command whose run is kept in a folder, and types it again where it was typed before."""
    from nestax.errors import SettingError

    try:
        line = json.loads((folder / COMMAND).read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError):
        raise SettingError(
            f"{folder} holds no run of a nestax command; a run of your own in Python goes on if the "
            "call is repeated with resume=True."
        ) from None
    except (ValueError, RecursionError):
        line = None
    match line:
        case {"arguments": list(words), "folder": str(begun)} if all(isinstance(w, str) for w in words):
            arguments = [*words, "--checkpoint", str(folder.absolute()), "--resume", "--overwrite"]
        case _:
            raise SettingError(f"{folder / COMMAND} is damaged: type the command again, with --resume.")
    if out is not None:
        arguments += ["--out", str(out.absolute())]
    root = ctx.find_root()
    shown = f"In {begun}: {root.info_name} {shlex.join(arguments)}"
    # Somebody else may have written the file: nothing in it moves the cursor.
    note("".join(c if c.isprintable() else ascii(c)[1:-1] for c in shown))
    if os.path.isdir(begun):  # whatever the name
        os.chdir(begun)
    root.command.main(arguments, prog_name=root.info_name)


def _way_on(ctx: typer.Context) -> str:
    folder = ctx.meta.get(KEPT_IN)
    return "" if folder is None else f" Go on with it by nestax resume {shlex.quote(str(folder))}."


def _finite(x: Any) -> Any:
    """Nothing in place of numbers that JSON does not know: NaN and infinity."""
    if isinstance(x, dict):
        return {key: _finite(value) for key, value in x.items()}
    if isinstance(x, list):
        return [_finite(value) for value in x]
    return None if isinstance(x, float) and not math.isfinite(x) else x


def command_line(ctx: typer.Context) -> str:
    """Returns the command line as it was typed."""
    return f"{ctx.find_root().info_name} {shlex.join(ctx.meta[ARGUMENTS])}"


def names_in(words: list[str] | None) -> list[str]:
    """Names separated by commas or given one by one; one that holds a comma is in double quotes."""
    return [name for row in csv.reader(words or [], skipinitialspace=True) for name in row]


def note(words: str) -> None:
    """Prints words to standard error; results go to standard output."""
    typer.echo(words, err=True)
