"""What memory gains: how far the gradient of plain batches is off, and the levels that make it so."""

import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, PyTree

from nestax.chain.jacobian import pull_through
from nestax.chain.problem import Problem
from nestax.parts.estimator import Batches
from nestax.parts.plug_in import linearise, plug_in
from nestax.programs import compute

#: Errors up to this share are called small.
SMALL = 0.01
#: What is to be done about a bias; where blocks never come back, something else.
REMOVES = "a method with memory removes that"
REMOVES_ENDLESS = "no memory can remove that, and nx.Multilevel() does"
#: Plain batches may do if their bias is surely below this share of the gradient.
BEARABLE = 0.1


class PlainBatches(NamedTuple):
    """How far plain batches are off, everything relative to what all draws together say.

    bias: of the mean of their gradients. error: its standard error.
    value, derivative: root mean square error of one batch at each level, at an exact input.
    """

    bias: Array
    error: Array
    value: list[Array]
    derivative: list[Array]


def gain_of_memory(
    problem: Problem, w: PyTree, batches: Batches, size: int, draws: int, few: tuple[str, ...]
) -> tuple[float, tuple[str, ...]]:
    """The bias of plain batches of that size, NaN if it cannot be told, and what to say of memory.

    Nothing of levels whose mean few rows carry: the draws that are looked at may have none of these.
    """
    pairs = draws // (2 * size)
    if pairs < 2:  # one pair has no spread
        return math.nan, ()
    errors: PlainBatches = compute(_plain_batches, problem, w, batches, size, pairs)
    bias = float(errors.bias)
    error = float(errors.error)
    sentences = []
    if few or not (math.isfinite(bias) and math.isfinite(error)):
        bias = math.nan
    else:
        sentences.append(_about_bias(size, bias, error))
    for level, value, derivative in zip(problem.levels, errors.value, errors.derivative, strict=True):
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
    """Returns a sentence, or none if the level is zero in all respects, of which no error is a share."""
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
        samples = [batch["value"] for batch in batches]
        return tuple(
            {"value": None if sample is None else sample.part(start, count)} for sample in samples
        )

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
        """Returns squared errors of value and derivative of one batch, level by level."""
        drawn = zip(*linearise(problem, inputs, part, "value"), strict=True)
        known = zip(values, adjoints[1:], adjoints[:-1], strict=True)
        return [
            (_distance(y, value), _distance(pull(adjoint), pulled))
            for (y, pull), (value, adjoint, pulled) in zip(drawn, known, strict=True)
        ]

    def half(start: Array) -> tuple[PyTree, list[tuple[Array, Array]]]:
        part = cut(start, size)
        return gradient(part), squares(part)

    def pair(k: Array | int) -> tuple[PyTree, PyTree, Array, list[tuple[Array, Array]]]:
        """The mean gradient of two batches, how far it is from that of both together, and its square."""
        gradients, errors = jax.vmap(half)((2 * k + jnp.arange(2)) * size)
        mean = jax.tree.map(lambda g: jnp.mean(g, 0), gradients)
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
    """Computes the squared distance."""
    return optax.tree.norm(optax.tree.sub(a, b), squared=True)
