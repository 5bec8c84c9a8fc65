"""What the site has besides the pages in this folder: sections, names, methods, commands, llms.txt.

``index.md`` decides what belongs where: a heading is a section, a line is a page. A page that it does
not name is in no section, and the build says so. Everything here is written as reStructuredText into
folders that git ignores, before Sphinx looks for its sources.
"""

import ast
import enum
import html
import inspect
import operator
import re
import shutil
import types
import typing
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from urllib.parse import unquote

import nestax

HOME = "https://github.com/nestax/nestax/blob/main"
#: Folders that belong to this file, and are emptied when a build begins.
WRITTEN = ("sections", "project", "reference", "method", "command")
#: Pages that lie beside the README, and sections that are a page of their own.
PROJECT = ("CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md")
ELSEWHERE = ("gallery", "questions")
#: The gallery in the order of its pages: the bias, problems, frameworks, runs.
GALLERY = (
    "bias", "jensen", "portfolio", "label_noise", "ranking", "cox", "information", "bellman",
    "sinusoids", "flax", "torch", "methods", "own_method", "sweep", "stages", "error_bars", "streams",
)  # fmt: skip
LINE = re.compile(r"^\* \[(?P<title>.+?)\]\((?P<path>[^)]+)\): (?P<words>.+)$", re.M)
#: Modules with names of their own, in the order in which they are listed. Those of frameworks come last.
MODULES = (
    "problems", "problems.networks", "losses", "projections", "linear_oracles", "steps", "stop", "study",
    "theory", "parts", "testing", "datasets", "report", "sklearn", "equinox", "nnx", "torch",
)  # fmt: skip
#: Top-level names by what they are for; a name that stands nowhere here is listed as "more".
TOPICS = {
    "A problem": "Problem Level Population Sampler Groups Stream Blocks Conditional Prox",
    "A run": "minimize sweep grid solve_stages autotune load speed_up Method Checkpoint Devices",
    "What a run returns": "Result Record Sweep Status Continuation COLUMNS",
    "Looking at problems and methods": "check evaluate compare Comparison methods cite",
    "A loop of your own": "AbstractEstimator Estimate Batch draw_batches track track_init TrackState",
    "What goes wrong": "ProblemError SettingError ConvergenceWarning",
}


@dataclass
class Page:
    title: str
    path: str
    words: str

    @property
    def name(self) -> str:
        """The document of Sphinx. Pages from outside of this folder are copied into one in it."""
        stem = self.path.removesuffix(".md")
        return f"project/{Path(stem).name.lower()}" if stem.startswith("..") else stem


@dataclass
class Section:
    title: str
    words: str
    pages: list[Page]

    @property
    def name(self) -> str:
        return re.sub(r"\W+", "-", self.title.lower()).strip("-")


def read_index(folder: Path) -> list[Section]:
    """The sections of ``index.md``, each with its pages in order."""
    found = []
    for part in re.split(r"^## ", (folder / "index.md").read_text(), flags=re.M)[1:]:
        title, _, rest = part.partition("\n")
        words = rest.split("\n* ")[0].strip()
        found.append(Section(title.strip(), words, [Page(**m.groupdict()) for m in LINE.finditer(rest)]))
    return found


def write(folder: Path) -> None:
    """Everything that Sphinx is to find."""
    shutil.rmtree(folder / "gallery", ignore_errors=True)  # may hold examples that are gone
    for name in WRITTEN:
        shutil.rmtree(folder / name, ignore_errors=True)
        (folder / name).mkdir()
    more = {
        "methods": write_methods(folder),
        "api": write_names(folder) + write_commands(folder),
    }
    for section in read_index(folder):
        if section.name in ELSEWHERE:
            continue
        text = section_text(section) + more.get(section.name, "")
        (folder / "sections" / f"{section.name}.rst").write_text(text)
        for page in section.pages:
            if page.path.startswith("../"):
                text = (folder / page.path).read_text()
                (folder / f"{page.name}.md").write_text(with_links(text, "./"))


def section_text(section: Section) -> str:
    lines = [title_of(section.title), plain(section.words), "", ".. rst-class:: sections", ""]
    for page in section.pages:
        lines += [f":doc:`{page.title.replace('`', '')} </{page.name}>`", f"    {plain(page.words)}", ""]
    lines += [tree(f"{page.title.replace('`', '')} </{page.name}>" for page in section.pages)]
    return "\n".join(lines)


def title_of(words: str, line: str = "=") -> str:
    return f"{words}\n{line * len(words)}\n"


def tree(entries, caption: str = "") -> str:
    head = [".. toctree::", "   :hidden:", *([f"   :caption: {caption}"] if caption else []), ""]
    return "\n".join([*head, *(f"   {entry}" for entry in entries), "", ""])


def plain(markdown: str) -> str:
    """A sentence of Markdown as reStructuredText: code and links."""
    text = re.sub(r"`([^`]+)`", r"``\1``", markdown)
    return re.sub(r"\[(.+?)\]\((.+?)\.md\)", r":doc:`\1 </\2>`", text)


def table(rows: list[tuple[str, ...]], head: tuple[str, ...] | None = None, mark: str = "") -> str:
    """Rows of reStructuredText as a list-table."""
    lines = [".. list-table::", *(["   :header-rows: 1"] if head else [])]
    lines += [*([f"   :class: {mark}"] if mark else []), ""]
    for row in [*([head] if head else []), *rows]:
        lines += [f"   {'* -' if i == 0 else '  -'} {cell}" for i, cell in enumerate(row)]
    return "\n".join([*lines, "", ""])


def place_in_gallery(script: str) -> int:
    """Where Sphinx-Gallery puts ``plot_….py``."""
    return GALLERY.index(Path(script).stem.removeprefix("plot_"))


# Names


def names_of(module: types.ModuleType) -> list[str]:
    """What a module defines for others; a package, what its modules do."""
    given = getattr(module, "__all__", None)
    if given:
        return sorted(given, key=str.lower)
    own = lambda value: getattr(value, "__module__", "").startswith(module.__name__)
    listed = [name for name, value in vars(module).items() if name[0] != "_" and own(value)]
    return sorted(listed, key=str.lower)


def write_names(folder: Path) -> str:
    """Tables of all public names; a page for each is made by autosummary."""
    return write_names_of_top(folder) + "\n\n" + write_names_of_modules(folder)


def write_names_of_top(folder: Path) -> str:
    from nestax.estimators.registry import classes

    estimators = set(classes()) | set(BESIDE)
    public = [name for name in nestax.__all__ if not isinstance(getattr(nestax, name), types.ModuleType)]
    rest = set(public) - estimators - set(" ".join(TOPICS.values()).split())
    topics = {title: names.split() for title, names in TOPICS.items()}
    if rest:
        topics["More"] = sorted(rest, key=str.lower)
    topics["What a run returns"].remove("COLUMNS")
    (folder / "reference" / "columns.rst").write_text(columns_text())
    text = ["\n\n``import nestax as nx``. Every name has a page. To type: :doc:`/command-line`.\n"]
    for title, names in topics.items():
        text += [title_of(title, "-"), summary("nestax", names)]
        if title == "What a run returns":
            text += [
                ":doc:`nestax.COLUMNS </reference/columns>`: what a run can write down.\n",
                tree(["/reference/columns"]),
            ]
    text += [title_of("Methods", "-"), "One page each: :doc:`/sections/methods`.\n"]
    return "\n".join(text)


def write_names_of_modules(folder: Path) -> str:
    text = []
    for name in MODULES:
        if name in ("nnx", "torch"):
            text += write_framework(folder, name)
            continue
        module = operator.attrgetter(name)(nestax)
        names = [each for each in names_of(module) if each not in nestax.__all__]
        sentence = (module.__doc__ or "").split("\n\n")[0].replace("\n", " ")
        text += [title_of(f"nx.{name}", "-"), sentence, "", summary(f"nestax.{name}", names)]
    return "\n".join(text)


def columns_text() -> str:
    rows = [(f"``{name}``", escaped(words)) for name, words in nestax.COLUMNS.items()]
    return (
        title_of("nestax.COLUMNS")
        + "\n.. py:data:: nestax.COLUMNS\n\nWhat a run can write down.\n\n"
        + table(rows)
    )


def summary(module: str, names: list[str]) -> str:
    head = [".. autosummary::", "   :toctree: ../reference", "   :nosignatures:", ""]
    return "\n".join([*head, *(f"   {module}.{name}" for name in names), "", ""])


def write_framework(folder: Path, name: str) -> list[str]:
    """A page for PyTorch or Flax, neither of which is installed here: read off the source."""
    place = Path(inspect.getfile(nestax)).parent / name
    files = sorted(place.glob("*.py")) if place.is_dir() else [place.with_suffix(".py")]
    sentence = ast.get_docstring(ast.parse(files[0].read_text()))
    found = []
    for file in files:
        classes = [each for each in ast.parse(file.read_text()).body if isinstance(each, ast.ClassDef)]
        found += [each for each in classes if each.name[0] != "_" and ast.get_docstring(each)]
    text = [title_of(f"nestax.{name}"), sentence, ""]
    for each in sorted(found, key=lambda each: each.name):
        text += class_text(f"nestax.{name}", each)
    (folder / "reference" / f"nestax.{name}.rst").write_text("\n".join(text))
    rows = [
        (
            f":py:class:`nestax.{name}.{each.name}`",
            plain(ast.get_docstring(each).split("\n\n")[0].replace("\n", " ")),
        )
        for each in sorted(found, key=lambda each: each.name)
    ]
    entry = f"nestax.{name} </reference/nestax.{name}>"
    return [title_of(f"nestax.{name}", "-"), sentence, "", table(rows), tree([entry])]


def class_text(module: str, tree: ast.ClassDef) -> list[str]:
    """A class as Sphinx writes one that it can import."""
    from sphinx.ext.napoleon import Config, GoogleDocstring

    makers = [
        each for each in tree.body if isinstance(each, ast.FunctionDef) and each.name == "__init__"
    ]
    arguments = ast.unparse(makers[0].args).removeprefix("self").lstrip(", ") if makers else ""
    words = str(GoogleDocstring(ast.get_docstring(tree), Config()))
    lines = [f".. py:class:: {tree.name}({arguments})", f"   :module: {module}", ""]
    return [*lines, *(f"   {line}" for line in words.split("\n")), ""]


# Methods


def write_methods(folder: Path) -> str:
    """A page for each method: what it computes, what it costs, its settings and its paper."""
    from nestax.estimators.bibliography import BIBTEX
    from nestax.estimators.registry import classes, methods

    (folder / "reference" / "references.bib").write_text("\n\n".join(BIBTEX.values()))
    names = [*classes(), *BESIDE]
    for name in names:
        text = [title_of(name), ".. currentmodule:: nestax", "", f".. autoclass:: nestax.{name}", ""]
        if name not in BESIDE:
            facts = methods(name)
            rows = [row for row in facts.rows if row[0] != "reference" and row[1] not in ("", "–")]
            text += [title_of("What it costs and claims", "-"), table(rows, mark="facts")]
            text += [
                "Costs are per step and stochastic level, for a batch of b draws; n is the size of the",
                "population. :doc:`/methods` has all methods side by side.",
                "",
            ]
            about = classes()[name].about
            keys = [key for key in (about.reference, about.also) if key]
            text += reference(keys, BIBTEX)
        text += [
            f".. minigallery:: nestax.{name}",
            "   :add-heading: In the gallery",
            "   :heading-level: -",
            "",
        ]
        (folder / "method" / f"{name}.rst").write_text("\n".join(text))
    return (
        tree([f"/method/{name}" for name in names], "One page each")
        + title_of("One page each", "-")
        + "\n"
        + methods_table()
        + BIBLIOGRAPHY
    )


#: Methods that the table of all methods has no row for: what they cost depends on what they are given.
BESIDE = ("Multilevel", "PerBlock")

#: The list of papers stands once, on the page of the section.
BIBLIOGRAPHY = """
Papers
------

.. bibliography::
   :all:
"""


def reference(keys: list[str], entries: dict[str, str]) -> list[str]:
    if not keys:
        return []
    lines = [title_of("Reference", "-"), " ".join(f":cite:`{key}`" for key in keys), ""]
    lines += [".. code-block:: bibtex", ""]
    for key in keys:
        lines += [f"   {line}" for line in entries[key].strip().split("\n")]
    return [*lines, ""]


def methods_table() -> str:
    from nestax.estimators.registry import classes, methods

    rows = []
    facts = methods()
    column = facts.columns.index
    for name, row in zip(classes(), facts.rows, strict=True):
        sentence = first_sentence(classes()[name])
        rows.append((method_link(name), row[column("levels")], row[column("samples")], sentence))
    rows += [(method_link(name), "blocks", "", first_sentence(getattr(nestax, name))) for name in BESIDE]
    return table(rows, ("method", "levels", "samples", "what it is"), mark="stacked methods")


def method_link(name: str) -> str:
    return f":doc:`{name} </method/{name}>`"


def first_sentence(value) -> str:
    return inspect.getdoc(value).split("\n\n")[0].replace("\n", " ")


# Commands


def write_commands(folder: Path) -> str:
    """A page for each command, read off the functions that Typer calls."""
    from nestax.cli import app

    rows = []
    entries = []
    for words, function in commands_of(app, ("nestax",)):
        name, page = " ".join(words), "-".join(words[1:])
        (folder / "command" / f"{page}.rst").write_text(command_text(name, function))
        rows.append((f":doc:`{name} </command/{page}>`", code(inspect.getdoc(function).split("\n")[0])))
        entries.append(f"{name} </command/{page}>")
    return "\n\n" + title_of("Commands", "-") + "\n" + table(rows) + tree(entries, "Commands")


def commands_of(app, words: tuple[str, ...]):
    """Every command that does something, with the words that call it."""
    for each in app.registered_commands:
        yield (*words, each.name or each.callback.__name__.replace("_", "-")), each.callback
    for each in app.registered_groups:
        name = each.name if isinstance(each.name, str) else each.typer_instance.info.name
        yield from commands_of(each.typer_instance, (*words, name))


def command_text(name: str, function) -> str:
    settings = [
        (parameter, *typing.get_args(parameter.annotation)[:2])
        for parameter in inspect.signature(function, eval_str=True).parameters.values()
        if typing.get_origin(parameter.annotation) is typing.Annotated
    ]
    given = " ".join(
        each.name.upper() for each, _, info in settings if type(info).__name__ == "ArgumentInfo"
    )
    text = [title_of(f"``{name}``"), code(inspect.getdoc(function)), "", ".. code-block:: console", ""]
    text += [
        f"   $ {name} {given} [OPTIONS]",
        "",
        table([setting_row(*each) for each in settings], SETTINGS, mark="stacked settings"),
    ]
    text += [
        "Commands with ``--config`` also take their settings from a TOML file: :doc:`/command-line`.",
        "",
    ]
    return "\n".join(text)


SETTINGS = ("setting", "values", "without it", "what it says")


def setting_row(parameter, kind, info) -> tuple[str, ...]:
    """One setting of a command: what to type, what it may be, what it is by itself, what it means."""
    kinds = [each for each in typing.get_args(kind) or (kind,) if each is not type(None)]
    name = f"--{parameter.name.replace('_', '-')}"
    if type(info).__name__ == "ArgumentInfo":
        name = parameter.name.upper()
    elif info.param_decls:
        name = ", ".join(info.param_decls)
    values = WORDS.get(kinds[0], "")
    if isinstance(kinds[0], enum.EnumMeta):
        values = " or ".join(f"``{each.value}``" for each in kinds[0])
    if info.min is not None:
        values += f" from {info.min}"
    if info.max is not None:
        values += f" to {info.max}"
    default = getattr(parameter.default, "value", parameter.default)
    if default is inspect.Parameter.empty:
        default = "(must be given)"
    elif default is None or default is False:
        default = ""
    else:
        default = f"``{default}``"
    return f"``{name}``", values, default, code(info.help or "")


#: How the values of a setting are called. A flag has none.
WORDS = {int: "a whole number", float: "a number", str: "a word", Path: "a path"}


def code(words: str) -> str:
    return re.sub(r"(?<!`)`([^`]+)`(?!`)", r"``\1``", words).replace("*", r"\*")


# While Sphinx reads and writes


def connect(app) -> None:
    app.connect("source-read", read_source)
    app.connect("autodoc-process-docstring", read_docstring, priority=400)
    app.connect("doctree-resolved", link_names)
    app.connect("build-finished", finish)


def read_source(app, name: str, source: list[str]) -> None:
    """Links that leave this folder, and the figure and words that an example has left."""
    source[0] = with_links(source[0], "../" * (name.count("/") + 1))
    if name.startswith("gallery/"):
        source[0] = with_output(Path(app.srcdir), name, source[0])


def with_links(text: str, above: str) -> str:
    """Markdown whose links stay in the site where they can, and otherwise lead to the repository.

    ``above`` leads from the page to the root of the repository.
    """

    def place(path: str) -> str:
        path = path.removeprefix(above)
        if path.startswith("docs/"):
            return f"/{path.removeprefix('docs/')}"
        if path in PROJECT:
            return f"/project/{path.lower()}"
        if re.fullmatch(r"examples/plot_\w+\.py", path):
            return f"/gallery/{Path(path).stem}.rst"
        if path == "examples/README.rst":
            return "/gallery/index.rst"
        return f"{HOME}/{path}"

    if above == "./":
        text = re.sub(r"\]\((?!\.|#|/|\w+:)", "](./", text)
    found = rf"\]\(({re.escape(above)}[^)#\s]+)(#[^)]*)?\)"
    return re.sub(found, lambda link: f"]({place(link[1])}{link[2] or ''})", text)


def with_output(folder: Path, name: str, text: str) -> str:
    """A page of the gallery with what `make gallery` kept of it: Sphinx-Gallery has executed nothing."""
    kept = folder / "images" / "gallery" / name.split("/")[1]
    if not kept.with_suffix(".png").exists():
        return text
    figure = f"\n.. image:: /images/gallery/{kept.name}.png\n   :alt: What this example draws\n\n"
    text = text.replace(
        ".. GENERATED FROM PYTHON SOURCE LINES", figure + ".. GENERATED FROM PYTHON SOURCE LINES", 1
    )
    if kept.with_suffix(".txt").exists():
        printed = (
            f"It prints:\n\n.. literalinclude:: /images/gallery/{kept.name}.txt\n   :language: none\n\n"
        )
        text = re.sub(r"\n\.\. _sphx_glr_download", lambda m: f"\n{printed}{m[0]}", text, count=1)
    return text


def read_docstring(app, what, name, value, options, lines: list[str]) -> None:
    """The docstrings of nestax for Sphinx: formulas keep their lines, and signs mean themselves.

    A paragraph that begins with a name and a colon lists what an object holds. What stands indented by
    itself is a formula.
    """
    if not getattr(value, "__module__", "nestax").startswith("nestax"):
        lines[:] = lines[:1]  # what scikit-learn and others say belongs to their own sites
        return
    # Sphinx has moved all lines to the left until one stood at the margin. The last tells where it is.
    raw = getattr(value, "__doc__", None) or ""
    margin = len(raw) - len(raw.rstrip(" "))
    told = "\n".join(lines)
    if "\n" in raw and told.split("\n")[0] == raw.split("\n")[0]:
        told = re.sub(rf"^ {{{margin}}}", "", raw, flags=re.M).rstrip() + "\n"
    new = []
    for part in re.split(r"\n\s*\n", told):
        if new and re.match(r" *[a-z]\w*(, \w+)*: ", part):
            new += ["Holds:\n" + escaped(re.sub("^", "    ", part, flags=re.M))]
        elif not part.startswith("    "):
            new += [escaped(part)]
        else:
            new += ["::", part]
    lines[:] = "\n\n".join(new).split("\n")


def escaped(text: str) -> str:
    """Bars and stars are signs of mathematics outside of code."""
    parts = re.split(r"(``.*?``|`[^`]+`)", text, flags=re.S)
    return "".join(part if part.startswith("`") else re.sub(r"([|*])", r"\\\1", part) for part in parts)


def link_names(app, tree, name: str) -> None:
    """``nx.minimize`` leads to its page wherever it stands in a sentence."""
    from docutils import nodes

    objects = app.env.domains["py"].objects
    for literal in list(tree.findall(nodes.literal)):
        found = re.match(r"(?:nx|nestax)\.([\w.]+)", literal.astext())
        target = objects.get(f"nestax.{found[1].rstrip('.')}") if found else None
        inside = literal.parent
        if target is None or target.docname == name or isinstance(inside, nodes.reference | nodes.title):
            continue
        link = app.builder.get_relative_uri(name, target.docname) + f"#{target.node_id}"
        literal.replace_self(nodes.reference("", "", literal.deepcopy(), refuri=link, internal=True))


def finish(app, raised) -> None:
    """MathJax beside the pages, and llms.txt with a line for every page."""
    if raised or app.builder.format != "html":
        return
    home = Path(find_spec("sphinx-mathjax-offline").origin).parent / "static" / "mathjax"
    place = Path(app.outdir) / "_static" / "mathjax"
    shutil.copytree(
        home / "output" / "chtml" / "fonts", place / "output" / "chtml" / "fonts", dirs_exist_ok=True
    )
    shutil.copy(home / "tex-chtml.js", place)
    (Path(app.outdir) / "llms.txt").write_text(llms_text(Path(app.srcdir)))
    from sphinx.util import logging

    for sentence in broken_links(Path(app.outdir)):
        logging.getLogger(__name__).warning(sentence)


def broken_links(folder: Path) -> list[str]:
    """Links inside of the site that lead to no page, or to no place on it."""
    found = [page for page in folder.rglob("*.html") if "_static" not in page.parts]
    pages = {page: page.read_text() for page in found}
    places = {page: set(re.findall(r'\b(?:id|name)="([^"]+)"', text)) for page, text in pages.items()}
    told = set()
    for page, text in pages.items():
        for link in set(re.findall(r'\b(?:href|src)="([^"]+)"', text)):
            path, _, place = html.unescape(link).partition("#")
            if re.match(r"\w+:|//", path) or link in ("#", ""):
                continue
            target = (page.parent / unquote(path.partition("?")[0])).resolve() if path else page
            if not target.exists():
                told.add(f"{page.relative_to(folder)} links to {link}, which is not there.")
            elif place and target in places and unquote(place) not in places[target]:
                told.add(f"{page.relative_to(folder)} links to {link}, and there is no such place.")
    return sorted(told)


def llms_text(folder: Path) -> str:
    """https://llmstxt.org: what the project is, and its pages as Markdown."""
    head = (folder / "index.md").read_text().split("\n## ")[0].strip().split("\n")
    lines = [head[0], "", f"> {' '.join(head[1:]).strip()}", ""]
    for section in read_index(folder):
        lines += [f"## {section.title}", ""]
        source = lambda page: (
            "gallery/index.html" if page.path.endswith(".rst") else f"_sources/{page.name}.md.txt"
        )
        lines += [f"- [{page.title}]({source(page)}): {page.words}" for page in section.pages]
        lines += [""]
    return "\n".join(lines)
