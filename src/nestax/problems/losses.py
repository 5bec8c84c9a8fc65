"""Losses of predictions, linear models, and the checks of the rows that they are fitted to."""

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, PyTree

import nestax.trees as trees
from nestax.chain.problem import is_drawn
from nestax.errors import ProblemError, SettingError, choose
from nestax.projections import takes_metric

#: Rows whose losses are computed at once; more are computed in parts, again in the backward pass.
ROWS_AT_ONCE = 8192


def logistic(score: Array, y: Array) -> Array:
    """log(1 + e^s) − y·s for a label y of 0 or 1."""
    return optax.losses.sigmoid_binary_cross_entropy(jnp.reshape(score, ()), y)


def multinomial(scores: Array, y: Array) -> Array:
    """log Σ e^{s_k} − s_y for a class y of 0, 1, …; one score a class."""
    return optax.losses.softmax_cross_entropy_with_integer_labels(scores, y)


def squared(prediction: Array, y: Array) -> Array:
    """(prediction − y)², added up over the entries of a target with several."""
    return jnp.sum(optax.losses.squared_error(prediction, y))


LOSSES: dict[str, Callable[..., Array]] = {
    "logistic": logistic,
    "multinomial": multinomial,
    "squared": squared,
}


def linear(w: Array, x: Array) -> Array:
    return x @ w


def affine(w: dict[str, Array], x: Array) -> Array:
    return x @ w["slope"] + w["intercept"]


def slope(w: dict[str, Array]) -> Array:
    return w["slope"]


def of_rows(fn: Callable[[Any], PyTree], rows: PyTree) -> PyTree:
    """Maps ``fn`` over rows, some thousands at a time."""
    if len(jax.tree.leaves(rows)[0]) <= ROWS_AT_ONCE:
        return jax.vmap(fn)(rows)
    # The backward pass computes each part again: its intermediates would not fit into memory.
    return jax.lax.map(jax.checkpoint(fn), rows, batch_size=ROWS_AT_ONCE)


class RowLoss(eqx.Module):
    """ℓ(w; z) of one row z = (x, y): a loss of the model's prediction at x, and the target y."""

    model: Callable[[PyTree, Any], Any]
    loss: Callable[[Any, Any], Array]

    def __call__(self, w: PyTree, row: tuple[Array, Array]) -> Array:
        x, y = row
        return self.loss(self.model(w, x), y)

    def each(self, w: PyTree, rows: tuple[Array, Array]) -> Array:
        """Returns the losses of many rows, stacked along a leading axis."""
        return of_rows(lambda row: self(w, row), rows)


class Ridge(eqx.Module):
    """strength/2·‖·‖² of the weights, or of the part of them that is penalised."""

    strength: Array
    part: Callable[[PyTree], PyTree] | None

    def __call__(self, w: PyTree) -> Array:
        part = w if self.part is None else self.part(w)
        return self.strength / 2 * optax.tree.norm(part, squared=True)


class OnPart(eqx.Module):
    """A projection of one entry of the weights, which leaves the others alone."""

    name: str = eqx.field(static=True)
    project: Callable[..., PyTree]

    @property
    def takes_metric(self) -> bool:
        return takes_metric(self.project)

    def __call__(self, w: dict[str, PyTree], metric: PyTree = None) -> dict[str, PyTree]:
        own = {} if metric is None else {"metric": metric[self.name]}
        return w | {self.name: self.project(w[self.name], **own)}


class Fit(NamedTuple):
    """Rows, loss and weights that fit together.

    parts: rows (X, y) of every part, in the dtype of the weights.
    w0: the starting weights, or ``fn(key)``.
    at_start: the loss of every row of every part, at the start.
    penalty: the l2 term; None without one.
    """

    row_loss: RowLoss
    parts: tuple[tuple[Array, Array], ...]
    w0: PyTree
    at_start: list[Array]
    penalty: Ridge | None

    @property
    def dtype(self) -> Any:
        return self.at_start[0].dtype


def fit_together(
    parts: Sequence[tuple[str, Any, Any]],
    loss: str | Callable[[Any, Any], Array],
    model: Callable[[PyTree, Any], Any] | None,
    w0: PyTree,
    intercept: bool,
    l2: float,
) -> Fit:
    """Checks rows, loss, model and weights, and that losses at the start are finite and not negative.

    Args:
        parts: (what messages call it, X, y) for every part of the rows.
        loss: one of ``LOSSES``, or ``loss(prediction, y)``, a scalar of at least 0.
        model: ``model(w, x)``; None for a linear one.
        w0: the starting weights or ``fn(key)``; None for zeros, with a linear model.
        intercept: give the linear model one; its weights are then {"slope", "intercept"}.
        l2: strength of the penalty strength/2·‖w‖²; the intercept is not penalised.
    """
    if not callable(loss):
        choose("loss", loss, tuple(LOSSES))
    if not np.isscalar(l2) or not np.isreal(l2) or not 0 <= l2 < np.inf:  # pyright: ignore[reportOperatorIssue]
        raise SettingError(f"l2 must be a number of at least 0; got {l2!r}.")
    if model is not None and w0 is None:
        raise SettingError("a model of your own needs its starting weights: give w0.")
    if model is not None and intercept:
        raise SettingError(
            "intercept=True belongs to the linear model: leave out one of intercept and model."
        )
    tables = [(_features(X, name, model is None), _targets(y, name, loss)) for name, X, y in parts]
    _refuse_unlike([name for name, *_ in parts], tables)
    labels = np.unique(np.concatenate([y.ravel() for _, y in tables]))
    if loss in ("logistic", "multinomial") and len(labels) < 2:
        raise ProblemError(f"every label is {labels[0]:g}: a {loss} loss needs rows of two classes.")
    if model is None:
        model = affine if intercept else linear
        if w0 is None:
            scores = (int(labels.max()) + 1,) if loss == "multinomial" else ()
            w0 = jnp.zeros((tables[0][0].shape[1], *scores))
            w0 = {"slope": w0, "intercept": jnp.zeros(scores)} if intercept else w0
    row_loss = RowLoss(model, LOSSES[loss] if isinstance(loss, str) else loss)
    start = start_of(w0)
    numbers = [x for x in jax.tree.leaves(start) if not callable(x)]
    first = jnp.asarray(numbers[0]) if numbers else jnp.zeros(0)
    dtype = first.dtype if jnp.issubdtype(first.dtype, jnp.floating) else jnp.result_type(float)
    rows = trees.cast(tuple((jnp.asarray(X), jnp.asarray(y)) for X, y in tables), dtype)
    at_start = _losses_at(row_loss, start, rows, [name for name, *_ in parts])
    penalised = slope if model is affine else None
    penalty = Ridge(jnp.asarray(l2, dtype), penalised) if l2 else None
    return Fit(row_loss, rows, w0, at_start, penalty)


def start_of(w0: PyTree) -> PyTree:
    """Returns the starting weights, one draw of them if they are drawn."""
    return w0(jax.random.key(0)) if is_drawn(w0) else w0


@contextlib.contextmanager
def refusing(sentence: str) -> Iterator[None]:
    """Turns any error inside into a ProblemError: the sentence, and the reason in a line."""
    try:
        yield
    except Exception as error:
        reason = (str(error).strip() or repr(error)).splitlines()[0].rstrip(".")
        raise ProblemError(f"{sentence}: {reason}.") from None


@eqx.filter_jit
def _losses(row_loss: RowLoss, w: PyTree, parts: Any) -> list[Array]:
    return [row_loss.each(w, rows) for rows in parts]


def _losses_at(row_loss: RowLoss, w: PyTree, rows: Any, names: list[str]) -> list[Array]:
    with refusing("model, loss and rows do not fit together"):
        losses = _losses(row_loss, w, rows)
    for name, part in zip(names, losses, strict=True):
        if part.ndim != 1:
            raise ProblemError(
                f"loss must be one number for every row; for {name} it has the shape {part.shape[1:]}."
            )
        bad = np.flatnonzero(~np.isfinite(part))
        if bad.size:
            raise ProblemError(
                f"the loss of row {bad[0]} of {name} is {part[bad[0]]} at the start: choose another w0, "
                "or scale X."
            )
        if (part < 0).any():
            raise ProblemError(
                f"the loss of row {jnp.argmin(part)} of {name} is {part.min():.3g}, and losses must be "
                "at least 0: add a constant to the loss."
            )
    return losses


def _refuse_unlike(names: list[str], tables: list[tuple[np.ndarray, np.ndarray]]) -> None:
    for name, (X, y) in zip(names, tables, strict=True):
        if len(X) != len(y):
            raise ProblemError(f"{name} has {len(X)} rows in X but {len(y)} in y.")
        for word, table, other in (("features", X, tables[0][0]), ("targets", y, tables[0][1])):
            if table.shape[1:] != other.shape[1:]:
                raise ProblemError(
                    f"{name} has {word} of shape {table.shape[1:]} in a row where {names[0]} has "
                    f"{other.shape[1:]}: every row needs the same ones."
                )


def _features(X: Any, name: str, table: bool) -> np.ndarray:
    X = read_numbers(X, f"X of {name}")
    if len(X) == 0:
        raise ProblemError(f"{name} is empty: leave it out, or give it at least one row.")
    if table and X.ndim != 2:
        raise ProblemError(
            f"X of {name} must be a table, rows × features; got an array of {X.ndim} dimensions."
        )
    return X.astype(float) if table else X


def _targets(y: Any, name: str, loss: Any) -> np.ndarray:
    y = read_numbers(y, f"y of {name}")
    if loss == "squared":
        return y.astype(float)
    if loss not in ("logistic", "multinomial"):
        return y
    binary = loss == "logistic"
    wrong = y[(y != 0) & (y != 1)] if binary else y[(y < 0) | (y != np.floor(y))]
    if wrong.size or y.ndim != 1:
        allowed = "labels 0 and 1" if binary else "classes numbered 0, 1, 2, …"
        got = f"{wrong[0]:g}" if wrong.size else f"an array of {y.ndim} dimensions"
        raise ProblemError(f"y of {name} must hold {allowed} for a {loss} loss; got {got}.")
    return y.astype(float) if binary else y.astype(np.int32)


def read_labels(name: str, labels: Any, rows: int) -> tuple[np.ndarray, np.ndarray]:
    """Reads the labels, sorted, and which of them each row has."""
    labels = np.asarray(labels)
    if labels.shape != (rows,):
        raise ProblemError(
            f"{name} must hold one label for each of the {rows} rows; got an array of shape "
            f"{labels.shape}."
        )
    try:
        values, code = np.unique(labels, return_inverse=True)
        if np.any(values != values):
            raise TypeError
    except TypeError:  # they cannot be compared
        raise ProblemError(f"{name} must hold labels of one type, and none may be missing.") from None
    return values, code


def read_numbers(x: Any, what: str) -> np.ndarray:
    """Reads a finite array with one entry, or row of entries, for every example."""
    if hasattr(x, "toarray"):
        raise ProblemError(f"{what} is sparse: pass {what.split()[0]}.toarray().")
    try:
        x = np.asarray(x)
        x = x if x.dtype.kind in "biuf" else x.astype(float)
    except (TypeError, ValueError) as error:
        reason = str(error).partition(". ")[0].rstrip(".")
        raise ProblemError(f"{what} must be an array of numbers: {reason}.") from None
    if x.ndim == 0:
        raise ProblemError(f"{what} must have one entry for every row; got {x}.")
    where = np.argwhere(~np.isfinite(x))
    if len(where):
        axes = zip(("row", "column"), where[0], strict=False)
        raise ProblemError(
            f"{what} has {len(where)} entries that are NaN or infinite, the first at "
            f"{', '.join(f'{axis} {k}' for axis, k in axes)}: remove or fill them."
        )
    return x
