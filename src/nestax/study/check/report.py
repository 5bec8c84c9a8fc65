"""What a check of a problem has found, as a table and sentences."""

import dataclasses

from nestax.table import Table, as_html


@dataclasses.dataclass(frozen=True)
class LevelCheck:
    """What was found at one level.

    gradient_error: largest relative distance between the derivative along a random direction and
        central differences.
    range_violation: how far the exact value lies outside the set that ``project`` claims holds it.
    noise: standard deviation of one draw's value, over the size of the exact value.
    jac_noise: the same for the derivative along a random direction.
    """

    name: str
    gradient_error: float
    range_violation: float
    noise: float
    jac_noise: float


@dataclasses.dataclass(frozen=True)
class Report:
    """Result of ``check``; print it.

    exact_error: relative distance of the closed form ``exact=`` from the population, if given.
    batch_size: where the noise of a plain gradient is as large as the gradient itself, to the next
        power of two and at most 1,024. Methods with memory do well with less, plain ones need more.
    few: names of levels whose mean is carried by few rows; no suggestion is enough for these.
    problems: sentences about what is wrong; empty if nothing is.
    advice: sentences about levels that noise may carry out of their domain, and about those in ``few``;
        a run may go well all the same.
    plain_bias: how far the mean gradient of plain batches, those of a method without memory, lies from
        the gradient, over the length of the latter; NaN if it could not be told. The batches have the
        size suggested, or an eighth of the draws if that is less.
    memory: sentences about whether a method with memory pays, over all and level by level.
    """

    levels: tuple[LevelCheck, ...]
    exact_error: float | None
    batch_size: int
    few: tuple[str, ...]
    problems: tuple[str, ...]
    advice: tuple[str, ...]
    plain_bias: float
    memory: tuple[str, ...]

    @property
    def ok(self) -> bool:
        return not self.problems

    def __str__(self) -> str:
        left = f"{'level':<14}{'gradient error':>16}{'outside range':>16}"
        head = left + f"{'noise':>12}{'Jacobian noise':>16}"
        rows = [
            f"{c.name:<14}{c.gradient_error:>16.1e}{c.range_violation:>16.1e}"
            f"{c.noise:>12.3g}{c.jac_noise:>16.3g}"
            for c in self.levels
        ]
        return "\n".join([head, *rows, *self._sentences()])

    __repr__ = __str__

    def _sentences(self) -> list[str]:
        rest = ", which is not enough, as few rows carry a mean: see below" if self.few else ""
        lines = [f"suggested batch size: {self.batch_size}{rest}"]
        lines += [f"- {sentence}" for sentence in self.memory]
        if self.exact_error is not None:
            lines.append(f"closed form against the population: {self.exact_error:.1e}")
        verdicts = [f"! {sentence}" for sentence in self.problems]
        verdicts += [f"? {sentence}" for sentence in self.advice]
        return [*lines, *(verdicts or ["nothing wrong was found"])]

    def _repr_html_(self) -> str:
        """For notebooks."""
        head = ["level", "gradient error", "outside range", "noise", "Jacobian noise"]
        rows = [[c.name, c.gradient_error, c.range_violation, c.noise, c.jac_noise] for c in self.levels]
        return as_html(Table(head, rows), *self._sentences())
