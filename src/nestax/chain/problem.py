"""The chain F = f_K ∘ … ∘ f_1, its feasible set, and everything exact about it."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, PyTree

import nestax.trees as trees
from nestax.chain.blocks import mean_over_blocks, over_parts
from nestax.chain.every_block import across_blocks
from nestax.chain.fitting import check_blocks, draws_of, fit_together, line_of, named, refuse_batches
from nestax.chain.jacobian import Jacobian, pull_through
from nestax.chain.level import Level
from nestax.chain.prox import Prox
from nestax.draws.blocks import AbstractBlocks
from nestax.errors import ProblemError
from nestax.table import Table, as_html
from nestax.trees import Shapes, shapes_of


class Problem(eqx.Module):
    """Minimise F(w) = f_K ∘ … ∘ f_1(w) + penalty(w) over a feasible set.

    With ``nx.Blocks`` or ``nx.Conditional`` as data, the average of such chains:
    F(w) = 1/M Σ_m f_K^m ∘ … ∘ f_1^m(w) + penalty(w).

    Args:
        levels: the levels from the innermost, which sees w, to the outermost, which is a scalar.
        w0: the starting weights, a tree of arrays of one floating-point dtype, or ``fn(key)``. What
            holds arrays is a tree, even if it can be called, as an Equinox module; it may hold functions
            besides.
        project: Euclidean projection of w onto the feasible set; None means unconstrained. One with an
            argument ``metric``, as all of ``nx.projections`` have it, is told the norm of steps that
            scale every entry by itself, as Adam's do; with any other such steps are made of equal
            length in all entries, unless it treats every entry by itself.
        linear_oracle: ``v ↦ argmin <v, x>`` over the feasible set, for Frank-Wolfe steps; alone or
            beside ``project``. See ``nx.linear_oracles``.
        prox: a convex term r(w) that need not be smooth, as an ``nx.Prox``; added to F, and handled
            by step rules that know their length. See ``nx.Prox``.
        penalty: an exact smooth term ``fn(w)`` added to F.
        exact: closed form ``fn(w)`` of f_K ∘ … ∘ f_1, where one is known; it replaces passes over
            the population in records. ``nx.check`` compares it with the population.
        optimum: the least value of F, where it is known; enables the column ``gap``.
        metrics: further columns of the records, each ``fn(w)``, a scalar.
    """

    levels: tuple[Level, ...]
    w0: PyTree
    feasible: Callable[[PyTree], PyTree] | None
    linear_oracle: Callable[[PyTree], PyTree] | None
    prox: Prox | None
    penalty: Callable[[PyTree], Array] | None
    exact: Callable[[PyTree], Array] | None
    optimum: Array | None
    metrics: dict[str, Callable[[PyTree], Array]]

    def __init__(
        self,
        levels: Sequence[Level],
        w0: PyTree,
        *,
        project: Callable[[PyTree], PyTree] | None = None,
        linear_oracle: Callable[[PyTree], PyTree] | None = None,
        prox: Prox | None = None,
        penalty: Callable[[PyTree], Array] | None = None,
        exact: Callable[[PyTree], Array] | None = None,
        optimum: float | Array | None = None,
        metrics: Mapping[str, Callable[[PyTree], Array]] | None = None,
    ):
        levels = named(levels)
        check_blocks(levels)
        self.w0 = w0 if is_drawn(w0) else _as_weights(w0)
        shape = shapes_of(jax.eval_shape(lambda: self.start(jax.random.key(0))))
        dtype = _float_dtype(shape)
        self.levels = fit_together([trees.cast(level, dtype) for level in levels], shape)
        functions = {
            "project": project,
            "linear_oracle": linear_oracle,
            "penalty": penalty,
            "exact": exact,
        }
        for name, fn in functions.items():
            if fn is not None and not callable(fn):
                raise ProblemError(f"{name} must be a function of w; got {fn!r}.")
        if prox is not None and not isinstance(prox, Prox):
            raise ProblemError(f"prox must be an nx.Prox, such as nx.Prox.l1(0.1); got {prox!r}.")
        if prox is not None and (project is not None or linear_oracle is not None):
            raise ProblemError(
                "prox= and a feasible set cannot be combined: build the set into the proximal map, "
                "prox(w, scale) = argmin of scale·r(x) + ‖x − w‖²/2 over the set."
            )
        self.feasible = project
        self.penalty = penalty
        self.exact = exact
        self.linear_oracle = linear_oracle
        self.prox = trees.cast(prox, dtype)
        _check_weights("project", project, shape)
        _check_weights("linear_oracle", linear_oracle, shape)
        if prox is not None:
            _check_weights("prox", lambda w: self.proximal(w, jnp.ones((), dtype)), shape)
        self.optimum = None if optimum is None else jnp.asarray(optimum, dtype)
        self.metrics = dict(metrics or {})

    def replace(self, **changes: Any) -> "Problem":
        """A copy with some of the constructor's arguments changed; everything is checked again."""
        same = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        same["project"] = same.pop("feasible")
        return Problem(**(same | changes))

    # What the chain looks like

    @property
    def shape(self) -> Shapes:
        """The shapes of w."""
        return self.levels[0].shape.inputs

    @property
    def dtype(self) -> Any:
        return jnp.dtype(self.shape.leaves[0][1])

    @property
    def finite(self) -> bool:
        """Whether every stochastic level has a population, so that F can be computed exactly."""
        return all(level.source is None or level.source.size for level in self.levels)

    @property
    def blocks(self) -> AbstractBlocks | None:
        """The blocks that the levels share, from the first level that draws; None without blocks."""
        first = next(level.source for level in self.levels if level.source is not None)
        return first if isinstance(first, AbstractBlocks) else None

    @property
    def endless(self) -> bool:
        """Whether there is no end of blocks, so that none is ever seen twice."""
        return self.blocks is not None and self.blocks.blocks is None

    @property
    def simulated(self) -> bool:
        """Whether all that is drawn inside of blocks is made anew, from a key."""
        sources = [level.source for level in self.levels if level.source is not None]
        return all(isinstance(source, AbstractBlocks) and source.simulates for source in sources)

    def block(self, number: Array | int) -> "Problem":
        """The chain of one block alone, which has neither the closed form nor the optimum of all.

        Where there is no end of them, a key stands for the number.
        """
        one = self.with_sources(lambda source: source.block(number))
        return _of_others(one)

    def every_block(self) -> "Problem":
        """The same F as one chain, whose values hold one entry per block and whose draws visit all of
        them: what methods that know no blocks run on, at M samples a draw."""
        if self.blocks is None:
            return self
        return self.replace(levels=across_blocks(self.levels))

    def with_sources(self, change: Callable[[Any], Any]) -> "Problem":
        """A copy in which every level draws from what ``change`` makes of its source."""

        def swap(level: Level) -> Level:
            return level if level.data is None else level.replace(data=change(level.data))

        return eqx.tree_at(lambda p: p.levels, self, tuple(map(swap, self.levels)))

    def describe(self) -> str:
        """The chain of shapes, one line a level, and what else belongs to the problem."""
        lines = [line_of("w", None, self.shape)]
        lines += [line_of(level.name, level, level.shape.outputs) for level in self.levels]
        return "\n".join([*lines, *(f"  {words}" for words in self._extras())])

    def _extras(self) -> list[str]:
        """A line on what else belongs to the problem, if there is anything."""
        others = {
            "project": self.feasible,
            "linear_oracle": self.linear_oracle,
            "prox": self.prox,
            "penalty": self.penalty,
        }
        given = [name for name, part in others.items() if part is not None]
        return [f"with {', '.join(given)}"] if given else []

    def __repr__(self) -> str:
        return f"Problem\n{self.describe()}"

    def _repr_html_(self) -> str:
        """For notebooks."""
        rows = [["w", draws_of(None), self.shape.in_short()]]
        rows += [[level.name, draws_of(level), level.shape.outputs.in_short()] for level in self.levels]
        return as_html(Table(["level", "draws", "returns"], rows), *self._extras())

    def start(self, key: Array) -> PyTree:
        return _as_weights(self.w0(key)) if is_drawn(self.w0) else self.w0

    def project(self, w: PyTree, **metric: PyTree) -> PyTree:
        """The nearest point of the feasible set; in the norm ``metric=`` of a step, if that is given."""
        return w if self.feasible is None else self.feasible(w, **metric)

    def proximal(self, w: PyTree, scale: Any, **metric: PyTree) -> PyTree:
        """argmin over the feasible set of scale·r(x) + ‖x − w‖²/2: the projection where r = 0."""
        return self.project(w, **metric) if self.prox is None else self.prox.fn(w, scale, **metric)

    # Copies with other numbers or other data

    def with_args(self, **args: tuple[Any, ...]) -> "Problem":
        """A copy in which the named levels have other ``args``; shapes must stay the same.

        Closed form and optimum belong to the old ones: the copy has neither, and its exact values come
        from passes over the population.
        """

        def change(level: Level, values: tuple[Any, ...]) -> Level:
            return level.replace(args=trees.cast(tuple(map(jnp.asarray, values)), self.dtype))

        return _of_others(self._with_levels(args, change))

    def with_data(self, **data: Any) -> "Problem":
        """A copy in which the named levels draw from other data, for example held-out rows."""

        def swap(level: Level, new: Any) -> Level:
            changed = trees.cast(level.replace(data=new), self.dtype)
            refuse_batches(level, changed)
            return changed

        # Closed form and optimum belong to the old data.
        changed = self._with_levels(data, swap)
        return changed.replace(exact=None, optimum=None)

    def in_parts(self, micro_batch: Sequence[int | None]) -> "Problem":
        """A copy whose levels evaluate at most so many draws at once; None leaves a level as it is."""
        if not any(micro_batch):
            return self
        pairs = zip(self.levels, micro_batch, strict=True)
        levels = tuple(level.replace(micro_batch=most or level.micro_batch) for level, most in pairs)
        return eqx.tree_at(lambda p: p.levels, self, levels)

    def _with_levels(self, changes: dict[str, Any], change: Any) -> "Problem":
        unknown = set(changes) - {level.name for level in self.levels}
        if unknown:
            raise ProblemError(
                f"no level is called {', '.join(sorted(unknown))}; the levels are "
                f"{', '.join(level.name for level in self.levels)}."
            )
        levels = tuple(
            change(level, changes[level.name]) if level.name in changes else level
            for level in self.levels
        )
        return eqx.tree_at(lambda p: p.levels, self, levels)

    # Everything exact: averages over the population, in parts of bounded size

    def value(self, w: PyTree) -> Array:
        """F(w), with penalty and non-smooth term."""
        inner = self.chain_value(w) if self.exact is None else self.exact(w)
        inner = inner if self.penalty is None else inner + self.penalty(w)
        return inner + self.nonsmooth(w)

    def nonsmooth(self, w: PyTree) -> Array:
        """r(w), the term behind ``prox``."""
        return jnp.zeros((), self.dtype) if self.prox is None else self.prox.value(w)

    def value_and_grad(self, w: PyTree) -> tuple[Array, PyTree]:
        """The smooth part of F at w and its gradient."""
        if self.exact is not None:
            return self.add_penalty(w, *jax.value_and_grad(self.exact)(w))
        return self.add_penalty(w, *self._chain_value_and_grad(w))

    def chain_value(self, w: PyTree) -> Array:
        """f_K ∘ … ∘ f_1(w) over the population, whatever closed form there is."""
        if self.blocks is None:
            return self.level_values(w)[-1]
        return self.mean_over_blocks(lambda block: block.level_values(w)[-1])

    def _chain_value_and_grad(self, w: PyTree) -> tuple[Array, PyTree]:
        if self.blocks is not None:
            return self.mean_over_blocks(lambda block: block._chain_value_and_grad(w))
        pulls = []
        x = w
        for level in self.levels:
            x, pull = level.value_and_pull(x, self._population(level))
            pulls.append(pull)
        return x, pull_through(pulls, x)

    def mean_over_blocks(self, fn: Callable[..., PyTree], *tables: PyTree) -> PyTree:
        """Mean of ``fn(block, *rows)`` over the blocks, with the rows that tables have for each."""

        def of_part(part: "Problem", *tables: PyTree) -> tuple[PyTree, PyTree]:
            def one(number: Array) -> PyTree:
                return fn(part.block(number), *jax.tree.map(lambda x: x[number], tables))

            assert part.blocks is not None
            return mean_over_blocks(part.blocks, one), ()

        return over_parts(self, of_part, *tables)[0]

    def add_penalty(self, w: PyTree, value: Array, grad: PyTree) -> tuple[Array, PyTree]:
        if self.penalty is None:
            return value, grad
        extra, extra_grad = jax.value_and_grad(self.penalty)(w)
        return value + extra, jax.tree.map(jnp.add, grad, extra_grad)

    def level_values(self, w: PyTree) -> list[PyTree]:
        """f_1(w), f_2(f_1(w)), …, exact."""
        values = []
        x = w
        for level in self.levels:
            x = level.value(x, self._population(level))
            values.append(x)
        return values

    def level_jacobians(self, w: PyTree) -> list[Jacobian]:
        """The exact Jacobian of every level, at the exact value of the level before it."""
        jacs = []
        x = w
        for level in self.levels:
            x, jac = level.value_and_jac(x, self._population(level))
            jacs.append(jac)
        return jacs

    def stationarity(self, w: PyTree, grad: PyTree) -> Array:
        """‖∇F(w)‖; the gradient mapping ‖w − prox(w − ∇F(w))‖ under a constraint or with a non-smooth
        term; the Frank-Wolfe gap max <∇F(w), w − x> where there is a linear oracle only."""
        if self.feasible is None and self.linear_oracle is not None:
            return jnp.asarray(optax.tree.vdot(grad, optax.tree.sub(w, self.linear_oracle(grad))))
        if self.feasible is None and self.prox is None:
            return optax.tree.norm(trees.as_average(grad))
        moved = optax.tree.sub(w, self.proximal(optax.tree.sub(w, grad), 1.0))
        return optax.tree.norm(trees.as_average(moved))

    def left(self, w: PyTree, grad: PyTree, distance: Array) -> Array:
        """What F would fall by, to first order, on going that far in the best direction.

        <∇F, w − x> + r(w) − r(x) with x = prox(w − η∇F), η such that x is that far away or at the end
        of the set; without constraints distance·‖∇F‖. Near the optimum of a smooth F it is twice the
        share of the distance that is left, times the fall so far, whatever the units of F and w.
        """
        length = optax.tree.norm(trees.as_average(grad))
        if self.feasible is None and self.prox is None:
            return self.stationarity(w, grad) if self.linear_oracle is not None else length * distance
        step = distance / jnp.where(length > 0, length, 1)
        ahead = w
        for _ in range(4):  # a projection takes most of a first step away where ∇F is normal to the set
            there = optax.tree.sub(w, trees.cast(optax.tree.scale(step, grad), self.dtype))
            ahead = self.proximal(there, step)
            gone = optax.tree.norm(trees.as_average(optax.tree.sub(w, ahead)))
            step = step * jnp.where(gone > 0, distance / jnp.where(gone > 0, gone, 1), 1)
        fall = optax.tree.vdot(trees.as_average(grad), trees.as_average(optax.tree.sub(w, ahead)))
        return jnp.asarray(fall) + self.nonsmooth(w) - self.nonsmooth(ahead)

    @staticmethod
    def _population(level: Level) -> Any:
        return None if level.source is None else level.source.population()


def _of_others(problem: Problem) -> Problem:
    """A problem whose closed form and optimum are those of another, without them."""

    def known(problem: Problem) -> Any:
        return problem.exact, problem.optimum

    return eqx.tree_at(known, problem, (None, None), is_leaf=lambda x: x is None)


def _check_weights(name: str, fn: Callable[[PyTree], PyTree] | None, shape: Shapes) -> None:
    """Refuses a map of the weights that does not return weights."""
    if fn is None:
        return
    try:
        returned = shapes_of(jax.eval_shape(fn, shape.structs()))
    except Exception as error:
        reason = str(error).strip().splitlines()[0] if str(error).strip() else repr(error)
        raise ProblemError(f"{name} cannot take weights of shape {shape}: {reason}") from None
    if returned != shape:
        raise ProblemError(f"{name} must return weights like w0, {shape}; it returns {returned}.")


def is_drawn(w0: Any) -> bool:
    """Whether starting weights are ``fn(key)``: an Equinox module can be called, but holds arrays."""
    return callable(w0) and not any(map(trees.is_array, jax.tree.leaves(w0)))


def _as_weights(w0: PyTree) -> PyTree:
    """Every number as an array; functions, such as activations, as a part of the structure."""
    return jax.tree.map(lambda x: jax.tree_util.Partial(x) if callable(x) else _as_array(x), w0)


def _as_array(x: Any) -> Array:
    if str(getattr(x, "dtype", "")) == "float64" and not jax.config.jax_enable_x64:  # pyright: ignore[reportAttributeAccessIssue]
        raise ProblemError(
            "w0 is float64 but JAX computes in float32 here: pass w0.astype('float32'), or call "
            "jax.config.update('jax_enable_x64', True) before anything else."
        )
    try:
        return trees.on_device(x) if isinstance(x, np.ndarray) else jnp.asarray(x)
    except TypeError:
        raise ProblemError(f"w0 holds {x!r}, which is no number. {WEIGHTS_ALONE}") from None


#: How the weights of a network are told from what else it holds.
WEIGHTS_ALONE = (
    "Pass the weights alone and put the rest back inside the level: weights, rest = "
    "eqx.partition(model, eqx.is_inexact_array) in Equinox, graph, weights, rest = nnx.split(model, "
    "nnx.Param, ...) in Flax."
)


def _float_dtype(shape: Shapes) -> Any:
    dtypes = {str(dtype): dtype for _, dtype in shape.leaves}  # those of keys have no order
    if len(dtypes) != 1 or not all(jnp.issubdtype(d, jnp.floating) for d in dtypes.values()):
        more = f" {WEIGHTS_ALONE}" if len(dtypes) > 1 else ""
        raise ProblemError(
            "w0 must hold floating-point numbers of one dtype; got "
            f"{', '.join(sorted(dtypes)) or 'no array'}. Write 1.0 for 1, or convert with .astype.{more}"
        )
    return next(iter(dtypes))
