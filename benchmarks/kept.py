"""What was measured against what is kept: which rows have become slower, and by how much.

Microseconds of two machines cannot be compared. So a row counts as a multiple of the first row of its
table, which took turns with it in the same process and is code that nestax has no part in.
"""

from typing import Any, NamedTuple

#: A row is slower if its ratio is this many times the kept one. Four runs of one code on one machine
#: differed by 1.11 times at most in "single" and "lanes" and by 1.13 times in "import", although other
#: programs ran.
SLOWER = 1.15
#: The same where one of the two is of another processor, or of a machine with other things to do. One
#: code differed by up to 1.5 times between two processors, and by up to 1.9 times in "levels" and 1.3
#: times in "dimension" while other programs emptied the caches.
SLOWER_ROUGHLY = 2.0
#: Wall time over CPU time, from which on a machine had other things to do. An idle one had 1.07 at most.
BUSY = 1.1
#: How rows begin that are not of nestax. The first row of a table that is compared is one of them.
OTHERS = ("kernel", "NumPy", "python", "import jax")


class Verdict(NamedTuple):
    """Sentences to print, and whether something is slower."""

    lines: list[str]
    slower: bool


def compare(kept: dict[str, float], now: dict[str, float], limit: float) -> Verdict:
    """Costs by row. What is faster is told as well, for it should be kept."""
    factors = {row: now[row] / kept[row] for row in kept if row in now}
    lines = [
        f"{'slower' if factor >= limit else 'faster'}: {row} is {now[row]:.3g} and was {kept[row]:.3g}, "
        f"{factor:.2f} times"
        for row, factor in sorted(factors.items(), key=lambda item: -item[1])
        if not 1 / limit < factor < limit
    ]
    lines += [f"kept, but not measured any more: {row}" for row in kept if row not in now]
    lines += [f"not kept yet: {row}" for row in now if row not in kept]
    return Verdict(
        [f"{len(factors)} rows compared; slower is {limit:g} times what is kept", *lines],
        any(factor >= limit for factor in factors.values()),
    )


def compare_section(kept: dict[str, Any], now: dict[str, Any]) -> Verdict:
    """Sections as ``bench.py`` keeps them: tables, and the machine that they were measured on."""
    machine = kept.get("machine", {})
    changed = [f"{k} was {machine.get(k)}" for k, v in now["machine"].items() if machine.get(k) != v]
    same = machine.get("processor") == now["machine"]["processor"]
    disturbed = {"what is kept": busy(kept), "this": busy(now)}
    limit = SLOWER if same and not any(disturbed.values()) else SLOWER_ROUGHLY
    lines, slower = compare(ratios(kept), ratios(now), limit)
    if machine and changed:
        lines.append(f"kept elsewhere: {', '.join(changed)}")
    lines += [f"{what} was measured on a busy machine" for what, found in disturbed.items() if found]
    return Verdict(lines, slower)


def busy(section: dict[str, Any]) -> bool:
    costs = [cost for table in section.values() if _holds_costs(table) for cost in table.values()]
    return not all(0 < cost["wall"] < BUSY * cost["cpu"] for cost in costs)


def ratios(section: dict[str, Any]) -> dict[str, float]:
    """The rows of nestax in all tables of costs, each divided by the first row of its table."""
    out = {}
    for name, table in section.items():
        if not _holds_costs(table):
            continue
        first, *rest = table
        if first.startswith(OTHERS):
            ours = [row for row in rest if not row.startswith(OTHERS)]
            out |= {f"{name}, {row} ÷ {first}": table[row]["cpu"] / table[first]["cpu"] for row in ours}
    return out


def _holds_costs(table: Any) -> bool:
    return isinstance(table, dict) and all(isinstance(x, dict) and "cpu" in x for x in table.values())
