"""Every method of the library, with what is known about it."""

import dataclasses
import difflib
from collections.abc import Callable
from typing import NamedTuple

import nestax.estimators as estimators
from nestax.errors import SettingError
from nestax.estimators.bibliography import BIBTEX
from nestax.parts.estimator import AbstractEstimator, Calls
from nestax.table import Table


class Row(NamedTuple):
    """One method, in words. Costs are per step and stochastic level, for a batch of b draws; where the
    outermost level costs something else, that follows after "outer"."""

    name: str
    levels: str
    samples: str
    value_calls: str
    derivative_calls: str
    memory: str
    rate: str
    assumes: str
    reference: str
    certainty: str


def classes() -> dict[str, type[AbstractEstimator]]:
    """Returns every method by name: whatever ``nestax.estimators`` imports."""
    names = sorted(estimators.__all__, key=str.lower)
    return {name: getattr(estimators, name) for name in names}


def find(name: str) -> type[AbstractEstimator]:
    """Returns the method of that name; capitals and hyphens do not matter."""
    known = {_plain(title): method for title, method in classes().items()}
    if _plain(name) in known:
        return known[_plain(name)]
    near = difflib.get_close_matches(_plain(name), known, n=1)
    hint = f"did you mean {known[near[0]].__name__!r}?" if near else "nx.methods() lists them all."
    raise SettingError(f"no method is called {name!r}; {hint}")


def _plain(name: str) -> str:
    return name.lower().replace("-", "").replace("_", "")


def as_estimator(method: str | AbstractEstimator) -> AbstractEstimator:
    """Returns the method itself, or with its default settings if it is named."""
    method = find(method)() if isinstance(method, str) else method
    if not isinstance(method, AbstractEstimator):
        raise SettingError(f"method must be a name or an estimator such as nx.SMVR(); got {method!r}.")
    return method


def methods(name: str | type[AbstractEstimator] | None = None) -> Table:
    """All methods: levels, cost, memory, claimed rate, assumptions, reference. Prints as a table.

    With the name or class of one method, a table of these facts about it, one a row.
    """
    if name is None:
        return Table(list(Row._fields), [list(_row(name, cls)) for name, cls in classes().items()])
    method = name if isinstance(name, type) else find(name)
    row = _row(method.__name__, method)
    facts = [[fact.replace("_", " "), cell] for fact, cell in zip(Row._fields, row, strict=True)]
    return Table(facts[0], facts[1:])


def cite(name: str | type[AbstractEstimator]) -> None:
    """Prints the BibTeX entries of a method, given by name or class, or the entry of a key."""
    if isinstance(name, str) and name in BIBTEX:
        references = [name]
    else:
        method = name if isinstance(name, type) else find(name)
        name = method.__name__
        references = _references(method)
    if not references:
        raise SettingError(f"{name} is no published method, so there is nothing to cite.")
    print("\n".join(BIBTEX[reference] for reference in references))


def _references(cls: type[AbstractEstimator]) -> list[str]:
    return [key for key in (cls.about.reference, cls.about.also) if key]


def _row(name: str, cls: type[AbstractEstimator]) -> Row:
    method = cls()
    about = cls.about
    inner = method.passes
    outer = method.outer_passes or inner
    fields = {field.name for field in dataclasses.fields(method)}
    often = ""
    if method.period == 1:
        often = "n"
    elif "restart_batch" in fields:
        often = "b, n every q" if method.refresh_batch == "population" else "b, B every q"
    elif method.refresh_batch == "population":
        often = "b, n every q" if "period" in fields else "b, n at the start"

    def cost(count: Callable[[dict[str, Calls]], int]) -> str:
        """b draws times a count, which may be another one at the outermost level."""
        first, last = ({0: "0", 1: "b"}.get(n, f"{n}b") for n in map(count, (inner, outer)))
        return first if first == last else f"{first}, outer {last}"

    every_step = often if method.period == 1 else ""
    return Row(
        name=name,
        levels="any" if about.levels is None else str(about.levels),
        samples=often or cost(len),
        value_calls=every_step or cost(lambda passes: sum(c.values for c in passes.values())),
        derivative_calls=every_step or cost(lambda passes: sum(c.derivatives for c in passes.values())),
        memory=about.memory,
        rate=about.rate,
        assumes=about.assumes,
        reference=", ".join(_references(cls)) or "–",
        certainty=about.certainty if about.reference else "–",
    )
