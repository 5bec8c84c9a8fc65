"""One stochastic map f(x) = E f(x; ξ): its function, its draws, means and derivatives over a batch."""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, PyTree

from nestax.chain.jacobian import Jacobian, jacobian_of
from nestax.chain.structure import Structure, analyse, bytes_of, depends
from nestax.chain.untraceable import ALWAYS_THE_SAME, THROWS_DICE, random_state, why_untraceable
from nestax.draws.rows import Batch, Coupling
from nestax.draws.source import AbstractSource, Sampler, as_source
from nestax.errors import ProblemError, check_count

AnyBatch = Batch | Coupling | None
Map = Callable[[PyTree], PyTree]

#: A population passes through in parts of at most so many draws, which make at most so many bytes. The
#: parts depend on nothing else, so that exact values are the same whatever memory is free.
PART_DRAWS = 4096
PART_BYTES = {"cpu": 2**28}
PART_BYTES_ELSEWHERE = 2**32


class Level(eqx.Module):
    """One level of a chain.

    Args:
        fn: ``fn(x, draw, *args)`` for ONE draw; the library averages over a batch. Without data:
            ``fn(x, *args)``, evaluated exactly, at no sample.
        data: rows with a common leading axis, a ``Population``, ``Sampler``, ``Groups``, ``Stream``,
            ``Blocks`` or ``Conditional``; None for a deterministic level.
        project: projection onto a closed convex set that is known to hold every value of f, for
            example v ↦ max(v, 0) for a variance. Trackers can leave that set, f cannot, and the
            projection costs nothing in the theory.
        args: numbers or arrays handed on to ``fn``; changing them never compiles again.
        name: what messages and tables call this level.
        batched: ``fn`` receives a whole batch of draws and returns the mean over it.
        micro_batch: the most draws that are evaluated at once, larger batches in parts of so many; None
            means all of a batch. ``minimize`` sets it where memory asks for it.
        structure: filled in by ``bind`` when the level becomes part of a chain.
    """

    fn: Callable[..., PyTree]
    source: AbstractSource | None
    #: What a level is told that draws nothing: the outer draw of an ``nx.Conditional``.
    given: AbstractSource | None
    onto: Callable[[PyTree], PyTree] | None
    args: tuple[Any, ...]
    name: str = eqx.field(static=True)
    batched: bool = eqx.field(static=True)
    micro_batch: int | None = eqx.field(static=True)
    structure: Structure | None = eqx.field(static=True)

    def __init__(
        self,
        fn: Callable[..., PyTree],
        data: Any = None,
        *,
        project: Callable[[PyTree], PyTree] | None = None,
        args: tuple[Any, ...] | list[Any] = (),
        name: str = "",
        batched: bool = False,
        micro_batch: int | None = None,
        structure: Structure | None = None,
    ):
        if not callable(fn):
            raise ProblemError(f"a level's first argument is its function; got {type(fn).__name__}.")
        if not isinstance(args, tuple | list):
            one = "X" if hasattr(args, "shape") else repr(args)
            raise ProblemError(
                f"args of a level must be a tuple, such as args=({one},); got {type(args).__name__}."
            )
        try:
            source = None if data is None else as_source(data)
        except ProblemError as error:
            raise ProblemError(f"level {name!r}: {error}" if name else str(error)) from None
        self.source = source if source is not None and source.draws else None
        self.given = source if self.source is None else None
        self.fn = fn
        self.onto = project
        self.name = name
        self.batched = batched
        self.args = tuple(jnp.asarray(a) if isinstance(a, int | float) else a for a in args)
        self.structure = structure
        self.micro_batch = micro_batch
        if micro_batch is not None:
            self.micro_batch = check_count(f"micro_batch of level {name!r}", micro_batch)
        if batched and self.source is not None and self.source.weighted:
            raise ProblemError(
                f"level {name!r}: batched=True needs draws of equal weight, so neither row weights nor "
                "groups or blocks of different sizes."
            )

    @property
    def deterministic(self) -> bool:
        return self.source is None

    @property
    def data(self) -> AbstractSource | None:
        """Where its draws come from, or what it is told instead."""
        return self.given if self.source is None else self.source

    def bind(self, x: PyTree) -> "Level":
        """This level with the structure it has for inputs of the shapes ``x``."""
        before = random_state()
        draw = () if self.source is None else (self.source.example(),)
        draws = 2 if self.batched and draw else 1
        draw = stacked(draw, draws) if self.batched else draw
        if isinstance(self.source, Sampler) and not depends(self.source.fn, jax.random.key(0)):
            raise ProblemError(f"level {self.name!r} {ALWAYS_THE_SAME}")
        structure = analyse(self._call, x, *draw, draws=draws)
        if random_state() != before:
            raise ProblemError(f"level {self.name!r} {THROWS_DICE}")
        return self.replace(structure=structure)

    def replace(self, **changes: Any) -> "Level":
        """A copy with some of the constructor's arguments changed."""
        same = {
            "fn": self.fn,
            "data": self.data,
            "project": self.onto,
            "args": self.args,
            "name": self.name,
            "batched": self.batched,
            "micro_batch": self.micro_batch,
            "structure": self.structure,
        }
        return Level(**(same | changes))

    @property
    def shape(self) -> Structure:
        if self.structure is None:
            raise ProblemError(f"level {self.name!r} must be part of a Problem before it is used.")
        return self.structure

    def project(self, value: PyTree) -> PyTree:
        """``value`` moved into the level's range, where one is known."""
        return value if self.onto is None else self.onto(value)

    def with_exact(self, tracked: PyTree, new: PyTree) -> PyTree:
        """``tracked`` with the outputs that do not see the draw from ``new``, which is exact there."""
        leaves = zip(self.shape.noisy, jax.tree.leaves(tracked), jax.tree.leaves(new), strict=True)
        return self.shape.outputs.treedef.unflatten([t if noisy else n for noisy, t, n in leaves])

    def value(self, x: PyTree, batch: AnyBatch) -> PyTree:
        """Mean of f(x; ξ) over the batch; f(x) itself for a deterministic level."""
        return self._average(lambda part: (self._mean(x, part), None), batch)[0]

    def value_and_jac(self, x: PyTree, batch: AnyBatch) -> tuple[PyTree, Jacobian]:
        """Means of f(x; ξ) and of its Jacobian over the same batch."""
        return self._average(
            lambda part: jacobian_of(lambda x: self._mean(x, part), x, self.shape), batch
        )

    def value_and_pull(self, x: PyTree, batch: AnyBatch) -> tuple[PyTree, Map]:
        """Mean of f(x; ξ), and the map p ↦ Jᵀp for the mean Jacobian J, without forming J."""

        def of_part(part: Batch | None) -> tuple[PyTree, Any]:
            return jax.vjp(lambda x: self._mean(x, part), x)

        if batch is None or batch.at_once(self._at_once(batch)):
            value, pullback = of_part(batch)  # pyright: ignore[reportArgumentType]
            return value, lambda p: pullback(p)[0]

        def pull(p: PyTree) -> PyTree:
            return batch.mean(lambda part: of_part(part)[1](p)[0], self._at_once(batch))

        return self.value(x, batch), pull

    def value_and_maps(self, x: PyTree, batch: AnyBatch) -> tuple[PyTree, Map, Map]:
        """Mean of f(x; ξ), and t ↦ Jt and p ↦ Jᵀp for the mean Jacobian J, without forming J."""
        value, pull = self.value_and_pull(x, batch)
        # The transpose of the pullback, and not a forward derivative: functions with a reverse rule
        # of their own have no forward one, and nothing is evaluated a second time.
        return value, lambda t: jax.linear_transpose(pull, value)(t)[0], pull

    def value_and_pulls(self, x: PyTree, batch: AnyBatch, size: int | None) -> tuple[PyTree, Map]:
        """Mean of f(x; ξ), and one pullback per draw: p_1, …, p_size ↦ J_1ᵀp_1, …, J_sizeᵀp_size.

        With ``size`` None as ``value_and_pull``, one pullback for the mean.
        """
        if size is None:
            return self.value_and_pull(x, batch)
        if batch is None:
            value, pull = self.value_and_pull(x, None)
            return value, jax.vmap(pull)
        draws: Any = batch.draws  # pyright: ignore[reportAttributeAccessIssue]

        def single(x: PyTree, draw: PyTree) -> PyTree:
            return self._mean(x, _batch_of_one(draw))

        copies = jax.tree.map(lambda a: jnp.broadcast_to(a, (size, *a.shape)), x)
        each, pullback = jax.vjp(lambda xs: jax.vmap(single)(xs, draws), copies)
        return jax.tree.map(lambda y: jnp.mean(y, 0), each), lambda ps: pullback(ps)[0]

    def value_and_jac_each(self, x: PyTree, batch: Batch) -> tuple[PyTree, Jacobian]:
        """f(x; ξ) and its Jacobian for every draw of the batch, along a leading axis."""
        return jax.vmap(lambda draw: self.value_and_jac(x, _batch_of_one(draw)))(batch.draws)

    def value_in_groups(self, x: PyTree, groups: Batch) -> PyTree:
        """Mean of f(x; ξ) over every group of a batch, along a leading axis where there is noise."""
        return self._in_groups(lambda draws: (self.value(x, Batch(draws)), None), groups)[0]

    def value_and_jac_in_groups(self, x: PyTree, groups: Batch) -> tuple[PyTree, Jacobian]:
        """The same with the Jacobian of every group, all of it along a leading axis."""
        return self._in_groups(lambda draws: self.value_and_jac(x, Batch(draws)), groups)

    def _in_groups(
        self, fn: Callable[[PyTree], tuple[PyTree, Any]], groups: Batch
    ) -> tuple[PyTree, Any]:
        """Value and Jacobian or None of every group; values without noise are those of the first."""
        draws = groups.size * jax.tree.leaves(groups.draws)[0].shape[1]
        if self.micro_batch is None or draws <= self.micro_batch:
            axes = self.shape.outputs.treedef.unflatten([0 if n else None for n in self.shape.noisy])
            return jax.vmap(fn, out_axes=(axes, 0))(groups.draws)
        # One group after the other, and once more for a derivative, so that one is held at a time.
        each, jacs = jax.lax.map(jax.checkpoint(fn), groups.draws)
        leaves = zip(self.shape.noisy, jax.tree.leaves(each), strict=True)
        return self.shape.outputs.treedef.unflatten([y if n else y[0] for n, y in leaves]), jacs

    def value_and_pull_in_groups(self, x: PyTree, groups: Batch) -> tuple[PyTree, Map]:
        """The same with the map p ↦ Jᵀp for the Jacobian of the whole batch."""
        each, pullback = jax.vjp(lambda x: self.value_in_groups(x, groups), x)
        count = groups.size

        def pull(p: PyTree) -> PyTree:
            leaves = zip(self.shape.noisy, jax.tree.leaves(p), strict=True)
            shares = [jnp.broadcast_to(x / count, (count, *x.shape)) if n else x for n, x in leaves]
            return pullback(self.shape.outputs.treedef.unflatten(shares))[0]

        return each, pull

    def _call(self, x: PyTree, *draw: PyTree) -> PyTree:
        """The function itself; what cannot be traced is refused in words that help."""
        told = () if self.data is None else (self.data.seen(*draw),)
        try:
            return self.fn(x, *told, *self.args)
        except Exception as error:
            why = why_untraceable(error)
            if why is None:
                raise
            raise ProblemError(f"level {self.name!r} {why}") from error

    def _mean(self, x: PyTree, batch: Batch | None) -> PyTree:
        if batch is None:
            return self._call(x)
        if self.batched:
            return self._call(x, batch.draws)
        if batch.size == 1:
            return self._call(x, jax.tree.map(lambda d: d[0], batch.draws))
        # Outputs that do not see the draw stay out of the average: they are exact as they are.
        noisy = self.shape.noisy
        outputs = self.shape.outputs
        axes = outputs.treedef.unflatten([0 if n else None for n in noisy])
        each = jax.vmap(lambda d: self._call(x, d), out_axes=axes)(batch.draws)
        share = None if batch.weights is None else batch.weights / jnp.sum(batch.weights)

        def average(y: Array) -> Array:
            return jnp.mean(y, 0) if share is None else jnp.tensordot(share.astype(y.dtype), y, 1)

        leaves = zip(noisy, jax.tree.leaves(each), strict=True)
        return outputs.treedef.unflatten([average(y) if n else y for n, y in leaves])

    def held(self) -> int:
        """Bytes that an evaluation with its pullback holds for every draw, the draws among it."""
        assert self.source is not None
        draw = self.source.example()

        def residuals(size: int) -> int:
            batch = Batch(stacked(draw, size))
            at = self.shape.inputs.structs()
            shapes = jax.eval_shape(
                lambda x, batch: jax.vjp(lambda x: self._mean(x, batch), x), at, batch
            )
            return sum(map(bytes_of, jax.tree.leaves(shapes)))

        # What does not grow with the batch, as weights do not, drops out of the difference.
        return max(1, (residuals(4) - residuals(2)) // 2)

    def _at_once(self, batch: Batch | Coupling) -> int:
        """How many draws of a batch are evaluated at once."""
        most = batch.size if self.micro_batch is None else min(batch.size, self.micro_batch)
        if batch.many:
            limit = PART_BYTES.get(jax.default_backend(), PART_BYTES_ELSEWHERE)
            most = min(most, PART_DRAWS, limit // max(self.shape.made, 1))
        return max(1, most)

    def _average(self, fn: Callable[[Any], tuple[PyTree, Any]], batch: AnyBatch) -> tuple[PyTree, Any]:
        """Averages ``fn(part)``, the value and the Jacobian (or None) of a part, over a batch."""
        if batch is None or batch.at_once(self._at_once(batch)):
            return fn(batch)
        value, jac = batch.mean(fn, self._at_once(batch))
        if all(self.shape.noisy):
            return value, jac
        # A sum of shares would round the outputs without noise: take those from a single draw.
        single, single_jac = fn(batch.one())
        value = self.with_exact(value, single)
        if jac is not None:
            rows = zip(self.shape.noisy, jac.tiles, single_jac.tiles, strict=True)
            tiles = tuple(mean if noisy else exact for noisy, mean, exact in rows)
            jac = eqx.tree_at(lambda j: j.tiles, jac, tiles)
        return value, jac


def _batch_of_one(draw: PyTree) -> Batch:
    return Batch(jax.tree.map(lambda a: a[None], draw))


def stacked(draw: PyTree, size: int) -> PyTree:
    """The shapes of so many draws, from those of one."""
    return jax.tree.map(lambda s: jax.ShapeDtypeStruct((size, *s.shape), s.dtype), draw)
