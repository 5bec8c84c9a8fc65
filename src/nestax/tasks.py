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
        """The same tasks with the first ``shots`` rows to learn from."""
        rows = self.support[1].shape[1]
        if check_count("shots", shots) > rows:
            raise ProblemError(
                f"a task has {rows} rows to learn from, fewer than the {shots} asked for."
            )
        return self._replace(support=jax.tree.map(lambda a: a[:, :shots], self.support))

    def first(self, count: int) -> "Tasks":
        """The first ``count`` tasks."""
        cut = lambda pair: jax.tree.map(lambda a: a[:count], pair)
        return self._replace(support=cut(self.support), query=cut(self.query))


def check_tasks(tasks: Tasks) -> Tasks:
    """Refuses tasks whose arrays do not fit together."""
    if not isinstance(tasks, Tasks):
        raise ProblemError(f"tasks must be nx.Tasks(support, query); got {type(tasks).__name__}.")
    for name, pair in {"support": tasks.support, "query": tasks.query}.items():
        if not isinstance(pair, tuple) or len(pair) != 2:
            raise ProblemError(f"{name} must be a pair (x, y) of arrays.")
        x, y = (np.shape(a) for a in pair)
        if len(x) < 3 or x[:3] != y[:3] or 0 in x[:3]:
            raise ProblemError(
                f"{name} needs x and y with common leading axes (tasks, rows, examples), all at least "
                f"1; got {x} and {y}."
            )
    if tasks.support[1].shape[0] != tasks.query[1].shape[0]:
        raise ProblemError(
            f"support holds {tasks.support[1].shape[0]} tasks and query {tasks.query[1].shape[0]}."
        )
    return tasks


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
    height, phase = rng.uniform(0.1, 5, (tasks, 1)), rng.uniform(0, np.pi, (tasks, 1))

    def points(rows: int) -> tuple[np.ndarray, np.ndarray]:
        x = rng.uniform(-5, 5, (tasks, rows))
        return x[:, :, None, None], (height * np.sin(x + phase))[:, :, None, None]

    return Tasks(points(check_count("support", support)), points(check_count("query", query)))
