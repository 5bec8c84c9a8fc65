"""Looks at a problem before it is run: derivatives, ranges, noise, a batch size, what memory gains."""

import dataclasses
import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, PyTree

import nestax.trees as trees
from nestax.chain.jacobian import pull_through
from nestax.chain.level import Level
from nestax.chain.problem import Problem
from nestax.draws.rows import Here
from nestax.draws.source import Population
from nestax.errors import check_count
from nestax.parts.estimator import Batches, draw_batches
from nestax.parts.plug_in import linearise, plug_in
from nestax.parts.remembering import norm
from nestax.programs import compute, trace
from nestax.streams.feed import with_first_rows
from nestax.study.evaluate import evaluate
from nestax.table import Table, as_html

#: Draws that are looked at side by side, over all blocks.
MOST_ROWS = 2**16
#: Errors up to this share are called small.
SMALL = 0.01
#: What is to be done about a bias; where blocks never come back, something else.
REMOVES = "a method with memory removes that"
REMOVES_ENDLESS = "no memory can remove that, and nx.Multilevel() does"
#: Plain batches may do if their bias is surely below this share of the gradient.
BEARABLE = 0.1
#: The largest batch that is suggested.
LARGEST_BATCH = 1024
#: Few rows carry a mean if they are no more than these, or fewer than one in the largest batch.
FEW = 32
#: As long as they are a smaller share of all rows than this.
RARE = 0.01
#: Larger populations are looked at by draws alone.
MOST_MEMBERS = 2**20


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
        words = f"{'level':<14}{'gradient error':>16}{'outside range':>16}"
        head = words + f"{'noise':>12}{'Jacobian noise':>16}"
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
        found = [f"! {sentence}" for sentence in self.problems]
        found += [f"? {sentence}" for sentence in self.advice]
        return [*lines, *(found or ["nothing wrong was found"])]

    def _repr_html_(self) -> str:
        """For notebooks."""
        head = ["level", "gradient error", "outside range", "noise", "Jacobian noise"]
        rows = [[c.name, c.gradient_error, c.range_violation, c.noise, c.jac_noise] for c in self.levels]
        return as_html(Table(head, rows), *self._sentences())


def check(problem: Problem, *, w: PyTree = None, draws: int = 512, seed: int = 0) -> Report:
    """Checks every level at ``w`` (by default the start), along the chain of batch means.

    In a chain with blocks all of them are looked at side by side, or the first alone if they are many.

    Args:
        problem: the problem.
        w: weights to check at; a point with no symmetry finds more than the start does.
        draws: how many draws per level to look at; fewer where rows are drawn without replacement and
            there are fewer.
        seed: for draws and directions.
    """
    draws = check_count("draws", draws)
    key = jax.random.key(seed)
    w = problem.start(key) if w is None else w
    whole = problem
    problem, advice = _seen(problem, draws)
    limits = [level.source.most for level in problem.levels if level.source is not None]
    draws = min([draws, *(most for most in limits if most is not None)])
    batches = draw_batches(
        with_first_rows(problem, draws), ("value",), key, 0, (draws,) * len(problem.levels)
    )
    findings = []
    sentences = []
    x = w
    around = None
    before = ""
    epsilon = float(jnp.finfo(problem.dtype).eps)
    for i, (level, batch) in enumerate(zip(problem.levels, batches, strict=True)):
        own = jax.random.fold_in(key, i)
        if around is not None and not compute(_defined, level, around, batch["value"]):
            advice.append(
                f"level {level.name!r}: not finite where its input is off by the noise of one draw, as "
                f"a tracked value can be; give level {before!r} a project= into its domain."
            )
            around = None
        found, value, deviation = compute(_look, level, x, batch["value"], own, i == 0)
        around = compute(_around, level, value, deviation, around, batch["value"], own)
        before = level.name
        if not _steady(level, x, batch["value"]):
            sentences.append(
                f"level {level.name!r} is another function each time it is traced, as one is that draws "
                "from a generator of its own; a run sees one of them: let the draw bring what is random."
            )
        one = LevelCheck(level.name, **{k: float(v) for k, v in found.items()})
        findings.append(one)
        if not one.gradient_error < 10 * epsilon ** (1 / 3):
            sentences.append(
                f"level {level.name!r}: its derivative differs from finite differences by "
                f"{one.gradient_error:.1e}; is it smooth there, or has it a derivative of its own?"
            )
        if not one.range_violation <= 1e3 * epsilon:
            sentences.append(
                f"level {level.name!r}: its value lies {one.range_violation:.1e} outside the set that "
                "project= names, so the projection would bias it."
            )
        x = level.project(value)
    exact_error = None
    if whole.exact is not None and whole.finite:
        exact_error = float(compute(_exact_error, whole, w))
        if not exact_error < 1e3 * epsilon:
            sentences.append(f"exact= differs from the population by {exact_error:.1e}, relative to it.")
    elif whole.exact is not None and whole.blocks is None:
        sentences += _contradicted(whole, w, draws, seed)
    scale = float(compute(_noise_scale, problem, w, batches))
    carried = {
        level.name: Carried(np.asarray(rows), _members(level))
        for level, rows in zip(problem.levels, compute(_contributions, problem, w, batches), strict=True)
        if rows is not None
    }
    few = {name: rows for name, rows in carried.items() if rows.few}
    advice += [rows.sentence(name) for name, rows in few.items()]
    # Draws that lack these rows show none of the noise that they make.
    scale = max([scale, *(rows.size / rows.effective for rows in few.values())])
    batch_size = 1
    if scale == scale:
        batch_size = 2 ** math.ceil(math.log2(min(max(scale, 1.0), LARGEST_BATCH)))
    size = min(batch_size, max(1, draws // 8))
    plain_bias, memory = _memory(problem, w, batches, size, draws, tuple(few))
    if whole.endless:
        memory = tuple(words.replace(REMOVES, REMOVES_ENDLESS) for words in memory[:1])
    return Report(
        tuple(findings),
        exact_error,
        batch_size,
        tuple(few),
        tuple(sentences),
        tuple(advice),
        plain_bias,
        memory,
    )


def _seen(problem: Problem, draws: int) -> tuple[Problem, list[str]]:
    """What is looked at of a problem, and a sentence if that is not all of it."""
    blocks = problem.blocks
    if blocks is None:
        return problem, []
    if blocks.blocks is None:
        once = "outer draws never come back, so no method can remember them: only one was looked at."
        return problem.block(jax.random.key(0)), [once]
    if blocks.even and blocks.blocks * draws <= MOST_ROWS:
        return problem.every_block(), []
    first = f"of {blocks.blocks:,} blocks only the first was looked at, by itself."
    return problem.block(0), [first]


def _steady(level: Level, x: PyTree, batch: Any) -> bool:
    """Whether tracing a level twice gives the same program."""
    known: dict[Any, Any] = {}
    value = lambda: trace(lambda x, batch: level.value(x, batch), x, batch, shared=known)
    one, two = value(), value()
    pairs = zip(one.constants, two.constants, strict=False)
    return one.program == two.program and all(a is b or np.array_equal(a, b) for a, b in pairs)


def _look(
    level: Level, x: PyTree, batch: Any, key: Array, weights: bool
) -> tuple[dict[str, Array], PyTree, Any]:
    """What is found, the mean value, and the standard deviation of each of its entries, if measured."""
    value = level.value(x, batch)
    deviation = None
    flat, unravel = ravel_pytree(x)
    direction = jax.random.normal(key, flat.shape, flat.dtype)
    direction = direction / jnp.linalg.norm(direction)
    move = _reach(flat, weights) * direction
    at = lambda t: ravel_pytree(level.value(unravel(flat + t * move), batch))[0]
    small = jnp.finfo(flat.dtype).eps ** (1 / 3)
    slope = jax.jvp(at, (jnp.zeros((), flat.dtype),), (jnp.ones((), flat.dtype),))[1]
    difference = (at(small) - at(-small)) / (2 * small)
    size = jnp.maximum(jnp.linalg.norm(slope), jnp.linalg.norm(ravel_pytree(value)[0]))
    found = {
        "gradient_error": jnp.linalg.norm(slope - difference)
        / jnp.maximum(size, jnp.finfo(flat.dtype).tiny),
        "range_violation": optax.tree.norm(optax.tree.sub(value, level.project(value)))
        / jnp.maximum(optax.tree.norm(value), 1.0),
        "noise": jnp.zeros(()),
        "jac_noise": jnp.zeros(()),
    }
    if batch is not None and not level.batched:
        one = lambda k: ravel_pytree(level.value(x, batch.part(k, 1)))[0]
        push = lambda k: jax.jvp(
            lambda t: ravel_pytree(level.value(unravel(flat + t * direction), batch.part(k, 1)))[0],
            (jnp.zeros((), flat.dtype),),
            (jnp.ones((), flat.dtype),),
        )[1]
        values = jax.vmap(one)(jnp.arange(batch.size))
        found["noise"] = _spread(values)
        deviation = jnp.std(values, axis=0)
        found["jac_noise"] = _spread(jax.vmap(push)(jnp.arange(batch.size)))
    return found, value, deviation


def _reach(flat: Array, weights: bool) -> Array:
    """The length over which each entry of an input may be taken to vary.

    A value varies by parts of itself: what comes next may be a logarithm, and the entries of very
    different sizes. Weights often start near 0 and leave for sizes of about 1.
    """
    size = jnp.linalg.norm(flat)
    if weights:
        return jnp.maximum(size, 1.0)
    own = math.sqrt(flat.size) * jnp.abs(flat)
    return jnp.where(flat != 0, own, jnp.where(size > 0, size, 1.0))


def _around(
    level: Level, value: PyTree, deviation: Array | None, around: PyTree, batch: Any, key: Array
) -> PyTree:
    """Values of the level near its mean: each entry a standard deviation of one draw above or below.

    A level without noise of its own hands on what is around its input, None where that is exact.
    """
    if deviation is None:
        move = jax.vmap(lambda x: level.project(level.value(x, batch)))
        return None if around is None else move(around)
    flat, unravel = ravel_pytree(value)
    ends = jnp.asarray([[-1.0], [1.0]], flat.dtype) * jnp.ones_like(flat)
    signs = jnp.concatenate([ends, jax.random.rademacher(key, (6, flat.size), flat.dtype)])
    return jax.vmap(lambda sign: level.project(unravel(flat + sign * deviation)))(signs)


def _defined(level: Level, around: PyTree, batch: Any) -> Array:
    """Whether the level and its derivative are finite at all these inputs."""

    def one(x: PyTree) -> Array:
        value, pull = level.value_and_pull(x, batch)
        return trees.all_finite((value, pull(jax.tree.map(jnp.ones_like, value))))

    return jnp.all(jax.vmap(one)(around))


def _spread(rows: Array) -> Array:
    """Root mean square deviation of the rows, over the size of their mean."""
    rows = rows / jnp.maximum(jnp.max(jnp.abs(rows)), jnp.finfo(rows.dtype).tiny)
    mean = rows.mean(axis=0)
    return jnp.sqrt(jnp.sum(jnp.var(rows, axis=0))) / jnp.maximum(jnp.linalg.norm(mean), 1e-30)


def _contradicted(problem: Problem, w: PyTree, draws: int, seed: int) -> list[str]:
    """A sentence if draws contradict ``exact=`` where there is no population to compare it with.

    A mean of draws inside of a function has a bias, which its change with their number stands for.
    """
    some, many = (evaluate(problem, w, draws=n, seed=seed) for n in (max(1, draws // 2), draws))
    closed = float(compute(lambda problem, w: problem.value(w), problem, w))
    unsure = 6 * many.stderr + 10 * abs(many.value - some.value) + 1e-4 * abs(many.value)
    if not math.isfinite(unsure) or abs(closed - many.value) <= unsure:
        return []
    told = f"{many.value:.4g} ± {many.stderr:.1g}"
    return [f"exact= makes F(w) {closed:.4g}, and {draws:,} draws make it {told}."]


def _exact_error(problem: Problem, w: PyTree) -> Array:
    population = problem.chain_value(w)
    closed = problem.exact(w)  # pyright: ignore[reportOptionalCall]
    return jnp.abs(population - closed) / jnp.maximum(jnp.abs(population), 1e-30)


def _noise_scale(problem: Problem, w: PyTree, batches: Any) -> Array:
    """tr Cov(plain gradient of single draws) / ‖gradient‖², along the chain of batch means."""
    values, pulls = plug_in(problem, w, batches)
    inputs = [w, *values[:-1]]
    x = values[-1]
    count = max(b["value"].size for b in batches if b["value"] is not None)

    def single(k: Array) -> Array:
        """The gradient with level values at their means and one draw in every Jacobian."""
        adjoint = jnp.ones_like(x)
        for level, batch, at in reversed(list(zip(problem.levels, batches, inputs, strict=True))):
            draw = None if batch["value"] is None else batch["value"].part(k, 1)
            adjoint = level.value_and_pull(at, draw)[1](adjoint)
        return ravel_pytree(adjoint)[0]

    gradient = pull_through(pulls, x)
    each = jax.lax.map(single, jnp.arange(min(count, 256)), batch_size=64)
    total = jnp.sum(jnp.var(each, axis=0))
    return total / jnp.maximum(optax.tree.norm(gradient, squared=True), np.finfo(np.float32).tiny)


# Means that few rows carry


class Carried(NamedTuple):
    """What every row adds to F through the mean of a level, without its sign.

    members: whether these are all rows of a population; draws otherwise.
    """

    parts: np.ndarray
    members: bool

    @property
    def size(self) -> int:
        return len(self.parts)

    @property
    def shares(self) -> np.ndarray:
        """The largest first; NaN if nothing can be told."""
        parts = -np.sort(-self.parts.astype(np.float64))
        with np.errstate(invalid="ignore"):
            return parts / parts.sum()

    @property
    def effective(self) -> float:
        """How many equal rows would be as noisy a mean."""
        return float(1 / np.sum(self.shares**2))

    @property
    def few(self) -> bool:
        return self.effective < min(max(FEW, self.size / LARGEST_BATCH), RARE * self.size)

    def sentence(self, name: str) -> str:
        some = math.ceil(self.effective)
        percent = min(99, math.floor(100 * self.shares[:some].sum()))
        rows = "rows" if self.members else "draws looked at"
        carry, them = ("carries", "it") if some == 1 else ("carry", "them")
        exact = ", or all rows at times, nx.Exact() or nx.SnapshotSMVR()" if self.members else ""
        return (
            f"level {name!r}: {some} of {self.size:,} {rows} {carry} {percent} % of its mean; batches "
            f"without {them} look free of noise, and no memory of means helps: take a weaker tilt (a "
            f"larger penalty or temperature), larger batches, weights that draw {them} "
            f"more often{exact}."
        )


def _members(level: Level) -> bool:
    source = level.source
    return (
        isinstance(source, Population)
        and isinstance(source.holder, Here)
        and source.size <= MOST_MEMBERS
    )


def _contributions(problem: Problem, w: PyTree, batches: Batches) -> list[Array | None]:
    """What every row adds to F through every level, to first order; None where rows have no values."""
    values, pulls = plug_in(problem, w, batches)
    inputs = [w, *values[:-1]]
    adjoint = jnp.ones_like(values[-1])
    out: list[Array | None] = []
    levels = zip(problem.levels, batches, inputs, pulls, strict=True)
    for level, batch, x, pull in reversed(list(levels)):
        known = None if level.batched or level.deterministic else batch["value"]
        if known is not None and _members(level):
            known = level.source.population()  # pyright: ignore[reportOptionalMemberAccess]
        out.append(None if known is None else _parts(level, x, known, adjoint))
        adjoint = pull(adjoint)
    return out[::-1]


def _parts(level: Level, x: PyTree, rows: Any, adjoint: PyTree) -> Array:
    """Σ|p·f(x; row)| for every row, over the outputs that see it, in a unit of its own."""
    noisy = level.shape.noisy
    size = norm(adjoint)
    unit = jnp.where(size > 0, size, 1)
    slopes = [p / unit for p, sees in zip(jax.tree.leaves(adjoint), noisy, strict=True) if sees]

    def of_row(k: Array) -> Array:
        values = jax.tree.leaves(level.value(x, rows.part(k, 1)))
        seen = [v for v, sees in zip(values, noisy, strict=True) if sees]
        pairs = zip(slopes, seen, strict=True)
        return sum((jnp.sum(jnp.abs(p * v)) for p, v in pairs), start=jnp.zeros(()))

    each = jax.lax.map(of_row, jnp.arange(rows.size), batch_size=256)
    return each if rows.weights is None else each * rows.weights


# What memory gains


class PlainBatches(NamedTuple):
    """How far plain batches are off, everything relative to what all draws together say.

    bias: of the mean of their gradients. error: its standard error.
    value, derivative: root mean square error of one batch at each level, at an exact input.
    """

    bias: Array
    error: Array
    value: list[Array]
    derivative: list[Array]


def _memory(
    problem: Problem, w: PyTree, batches: Batches, size: int, draws: int, few: tuple[str, ...]
) -> tuple[float, tuple[str, ...]]:
    """The bias of plain batches of that size, NaN if it cannot be told, and what to say of memory.

    Nothing of levels whose mean few rows carry: the draws that are looked at may have none of these.
    """
    pairs = draws // (2 * size)
    if pairs < 2:  # one pair has no spread
        return math.nan, ()
    found: PlainBatches = compute(_plain_batches, problem, w, batches, size, pairs)
    bias = float(found.bias)
    error = float(found.error)
    sentences = []
    if few or not (math.isfinite(bias) and math.isfinite(error)):
        bias = math.nan
    else:
        sentences.append(_about_bias(size, bias, error))
    for level, value, derivative in zip(problem.levels, found.value, found.derivative, strict=True):
        if not level.deterministic and level.name not in few:
            off = {"value": float(value), "derivative": float(derivative)}
            sentences += _about_level(level.name, size, off)
    return bias, tuple(sentences)


def _about_bias(size: int, bias: float, error: float) -> str:
    plain = f"plain batches of {size} bias the gradient by"
    known = f"{_percent(bias)} of its length (± {_percent(error)})"
    most = bias + 2 * error
    if bias > max(2 * error, SMALL):
        return f"{plain} {known}: {REMOVES}."
    if most < BEARABLE:
        why = "" if bias > 2 * error else ", which is within the noise of this look"
        return f"{plain} less than {_percent(max(most, SMALL))}{why}: nx.Plain may do as well."
    return f"{plain} {known}, which this look cannot tell from nothing: take more draws."


def _about_level(name: str, size: int, off: dict[str, float]) -> list[str]:
    """A sentence, or none if the level is zero in all respects, of which no error is a share."""
    off = {what: share for what, share in off.items() if math.isfinite(share)}
    if not off:
        return []
    start = f"level {name!r}: a batch of {size} is off by"
    if max(off.values()) <= SMALL:
        return [f"{start} less than {_percent(SMALL)}; memory has little to gain there."]
    shares = " and ".join(f"{_percent(share)} of the {what}" for what, share in off.items())
    return [f"{start} {shares}; memory can bring that down."]


def _percent(share: float) -> str:
    if share > 1e3:
        return "over 100,000 %"
    digits = 0 if share == 0 or share >= SMALL else 1
    return f"{100 * share:,.{digits}f} %"


def _plain_batches(problem: Problem, w: PyTree, batches: Batches, size: int, pairs: int) -> PlainBatches:
    """Cuts the draws of all levels into 2·``pairs`` batches alike.

    Batches and all draws are the same draws, so that what they have in common cancels: a chain that
    is linear in its draws has exactly no bias. That makes the spread of batches useless as a measure of
    the error. Two batches against both together measure the same bias once more, halved, and such
    pairs do not overlap.
    """

    def cut(start: Array | int, count: int) -> Batches:
        each = [batch["value"] for batch in batches]
        return tuple({"value": None if one is None else one.part(start, count)} for one in each)

    def gradient(part: Batches) -> PyTree:
        values, pulls = plug_in(problem, w, part)
        return pull_through(pulls, values[-1])

    everything = cut(0, 2 * size * pairs)
    outputs, pulls = plug_in(problem, w, everything)
    inputs = [w, *outputs[:-1]]
    values, _ = linearise(problem, inputs, everything, "value")
    adjoints = [jnp.ones_like(outputs[-1])]
    for pull in reversed(pulls):
        adjoints.insert(0, pull(adjoints[0]))

    def squares(part: Batches) -> list[tuple[Array, Array]]:
        """Squared errors of value and derivative of one batch, level by level."""
        seen = zip(*linearise(problem, inputs, part, "value"), strict=True)
        known = zip(values, adjoints[1:], adjoints[:-1], strict=True)
        return [
            (_distance(y, value), _distance(pull(adjoint), pulled))
            for (y, pull), (value, adjoint, pulled) in zip(seen, known, strict=True)
        ]

    def half(start: Array) -> tuple[PyTree, list[tuple[Array, Array]]]:
        part = cut(start, size)
        return gradient(part), squares(part)

    def pair(k: Array | int) -> tuple[PyTree, PyTree, Array, list[tuple[Array, Array]]]:
        """The mean gradient of two batches, how far it is from that of both together, and its square."""
        each, errors = jax.vmap(half)((2 * k + jnp.arange(2)) * size)
        mean = jax.tree.map(lambda g: jnp.mean(g, 0), each)
        excess = optax.tree.sub(mean, gradient(cut(2 * k * size, 2 * size)))
        square = optax.tree.norm(excess, squared=True)
        return mean, excess, square, jax.tree.map(lambda e: jnp.mean(e, 0), errors)

    # Sums, and not a stack: the weights may be those of a network.
    zero = jax.tree.map(lambda s: jnp.zeros(s.shape, s.dtype), jax.eval_shape(lambda: pair(0)))
    total = jax.lax.fori_loop(0, pairs, lambda k, t: optax.tree.add(t, pair(k)), zero)
    mean, excess, square, errors = jax.tree.map(lambda x: x / pairs, total)
    variance = (square - optax.tree.norm(excess, squared=True)) * pairs / (pairs - 1)
    length = optax.tree.norm(adjoints[0])
    return PlainBatches(
        bias=jnp.sqrt(_distance(mean, adjoints[0])) / length,
        # Twice the excess is the bias; all batches against one another tell it twice as well as pairs.
        error=jnp.sqrt(2 * jnp.maximum(variance, 0) / pairs) / length,
        value=[
            jnp.sqrt(error) / optax.tree.norm(value)
            for value, (error, _) in zip(values, errors, strict=True)
        ],
        derivative=[
            jnp.sqrt(error) / optax.tree.norm(pulled)
            for pulled, (_, error) in zip(adjoints[:-1], errors, strict=True)
        ],
    )


def _distance(a: PyTree, b: PyTree) -> Array:
    """Squared distance."""
    return optax.tree.norm(optax.tree.sub(a, b), squared=True)
