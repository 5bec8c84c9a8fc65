"""Few-shot tasks: many small data sets, each with rows to learn from and rows to be judged by."""

from typing import Any, NamedTuple

import jax
import numpy as np

from nestax.errors import ProblemError, check_count, check_seed


class Tasks(NamedTuple):
    """M tasks of equal size.

    support, query: pairs (x, y) of arrays with leading axes (tasks, rows, examples). A row is what is
        drawn at a time: one example of every class, or a single one in regression. Labels are whole
        numbers, targets of a regression floating-point.
    images: where x holds numbers of images, the images themselves, as bytes; None where x is the input.
    """

    support: tuple[Any, Any]
    query: tuple[Any, Any]
    images: Any = None

    def with_shots(self, shots: int) -> "Tasks":
        """Returns the same tasks with the first ``shots`` rows to learn from."""
        rows = self.support[1].shape[1]
        if check_count("shots", shots) > rows:
            raise ProblemError(
                f"a task has {rows} rows to learn from, fewer than the {shots} asked for."
            )
        return self._replace(support=jax.tree.map(lambda a: a[:, :shots], self.support))

    def first(self, count: int) -> "Tasks":
        """Returns the first ``count`` tasks."""
        held = self.support[1].shape[0]
        if check_count("count", count) > held:
            raise ProblemError(f"there are {held} tasks, fewer than the {count} asked for.")
        support, query = jax.tree.map(lambda a: a[:count], (self.support, self.query))
        return self._replace(support=support, query=query)


def check_tasks(tasks: Tasks) -> Tasks:
    """Returns the tasks with arrays for lists; refuses some that do not fit together."""
    if not isinstance(tasks, Tasks):
        raise ProblemError(
            f"tasks must be nx.problems.Tasks(support, query); got {type(tasks).__name__}."
        )
    support = _pair("support", tasks.support)
    query = _pair("query", tasks.query)
    if len(support[0]) != len(query[0]):
        raise ProblemError(f"support holds {len(support[0])} tasks and query {len(query[0])}.")
    for name, learned, judged in zip("xy", support, query, strict=True):
        if learned.shape[3:] != judged.shape[3:]:
            raise ProblemError(
                f"{name} of an example has the shape {learned.shape[3:]} in support and "
                f"{judged.shape[3:]} in query."
            )
    return Tasks(support, query, tasks.images)


def _pair(name: str, pair: Any) -> tuple[np.ndarray, np.ndarray]:
    if not isinstance(pair, tuple) or len(pair) != 2:
        raise ProblemError(f"{name} must be a pair (x, y) of arrays.")
    try:
        x, y = map(np.asarray, pair)
    except ValueError:  # lists of unequal length
        raise ProblemError(f"{name} holds tasks of different sizes: cut them to one size.") from None
    if x.ndim < 3 or x.shape[:3] != y.shape[:3] or x.size == 0:
        raise ProblemError(
            f"{name} needs x and y with common leading axes (tasks, rows, examples), all at least 1; "
            f"got {x.shape} and {y.shape}."
        )
    return x, y


def sinusoids(tasks: int = 200, *, support: int = 20, query: int = 20, seed: int = 0) -> Tasks:
    """Tasks y = a·sin(x + b), a uniform in [0.1, 5], b in [0, π], at x uniform in [−5, 5].

    Finn, Abbeel, Levine, ICML 2017.

    Args:
        tasks: how many tasks.
        support, query: rows per task to learn from and to be judged by.
        seed: every number follows from it.
    """
    check_count("tasks", tasks)
    rng = np.random.default_rng([check_seed(seed), 0x51E])
    height = rng.uniform(0.1, 5, (tasks, 1))
    phase = rng.uniform(0, np.pi, (tasks, 1))

    def points(rows: int) -> tuple[np.ndarray, np.ndarray]:
        x = rng.uniform(-5, 5, (tasks, rows))
        return x[:, :, None, None], (height * np.sin(x + phase))[:, :, None, None]

    return Tasks(points(check_count("support", support)), points(check_count("query", query)))
