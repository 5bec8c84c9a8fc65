"""Says aloud that a run went the wrong way: its result is no use, and nobody has to read it to know."""

from collections.abc import Sequence

import jax
import numpy as np
from jaxtyping import PyTree

from nestax.devices.hosts import gathered
from nestax.errors import DivergenceWarning, warn
from nestax.loop.status import Status
from nestax.run.result import Result
from nestax.trees import as_host

#: Columns that are to fall, those that are free of noise first.
FALLING = {"exact_value": "exact value", "gap": "gap", "value": "tracked value"}
#: A run whose last records are all above its start by this share of it has ended worse than it began.
WORSE = 0.1


def warn_if_diverged(result: Result) -> Result:
    """The result itself, after a warning if it is not finite any more or ended far above its start."""
    sentence = None
    name = next((name for name in FALLING if name in result.records), None)
    if result.status is Status.NONFINITE:
        sentence = result.message
    elif name is not None:
        sentence = _ascent(name, result.records["step"], result.records[name])
    if sentence is not None:
        warn(sentence, DivergenceWarning)
    return result


def warn_if_still(steps: int, before: PyTree, after: PyTree) -> None:
    """A warning if a run of at least one step has left its weights as they were, to the last bit."""
    sides = [[as_host(gathered(x))[0] for x in jax.tree.leaves(w)] for w in (before, after)]
    if steps and all(map(np.array_equal, *sides)):
        warn(
            f"The weights have not moved in {steps:,} step{'s' if steps > 1 else ''}: the learning rate "
            "is 0, or too small for their precision, or the gradient vanishes at the start."
        )


def _ascent(name: str, steps: Sequence[int] | np.ndarray, column: np.ndarray) -> str | None:
    """A sentence if a column that was to fall ended far above its start, or stayed above it.

    Far is further than the start lies from zero, and further than the run had come down before. A
    tracked value may be as far off by noise alone, so that its last records have to agree. Without
    noise a tenth is enough, if the last records agree.
    """
    if len(column) < 2:
        return None
    first = float(column[0])
    last = float(column[-1])
    best = int(np.argmin(column))
    lowest = float(column[best])
    far = first + max(abs(first), first - lowest)
    lately = column[1:][-max(3, len(column) // 4) :]
    if name == "value":
        above = last > far and np.min(lately) > first and np.median(lately) > far
    else:
        stayed = len(lately) >= 3 and np.min(lately) > first + WORSE * abs(first)
        above = last > far or stayed
    if not above:
        return None
    how = "The run diverged" if last > far else "The run ended worse than it began"
    before = f", after {lowest:.4g} at step {int(steps[best]):,}" if best else ""
    return (
        f"{how}: the {FALLING[name]} is {last:.4g} at step {int(steps[-1]):,} and was "
        f"{first:.4g} at step {int(steps[0]):,}, its start{before}. Lower the learning rate first; if "
        "that does not help, enlarge the batch, or give noisy levels a project= onto their range; "
        "nx.check(problem) tells whether few rows carry a mean."
    )
