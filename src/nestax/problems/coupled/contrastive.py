"""Contrastive learning with a denominator over all negatives: one block per anchor, K = 2.

    F(w) = 1/n Σ_i log( 1/(n−1) Σ_{j≠i} e^{(c_ij − c_ii)/τ} ),   c_ij = cosine of f(w; x_i) and g(w; z_j)

level 1   f_1^i(w; j) = e^{(c_ij − c_ii)/τ}      how near negative j is, against the anchor's own partner
level 2   f_2(u) = log u                          loss, deterministic

x_i and z_i are two views of the same thing; symmetric, the mean of this and of the same with the views
exchanged. A batch takes the mean over its own few negatives instead, and log makes that a bias,
unless every anchor has a running value of its own. Where τ is learned it is part of w, and handed on by
level 1, whose range depends on it.

Yuan, Wu, Qiu, Du, Zhang, Zhou, Yang: Provable stochastic optimization for global contrastive learning:
small batch does not harm performance, ICML 2022.
"""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, PyTree

import nestax.trees as trees
from nestax.chain.level import Level
from nestax.chain.problem import Problem
from nestax.draws.conditional import Conditional
from nestax.errors import ProblemError, SettingError, check_count, check_setting
from nestax.problems.coupled.pairs import but_own, default_visit, over_anchors
from nestax.problems.losses import Ridge, of_rows, read_numbers, refusing, start_of
from nestax.problems.nested.ratios import dtype_of
from nestax.problems.robust.dro import OfModel, with_dual

Encoder = Callable[[PyTree, Any], Array]

#: The least temperature: e^{2/τ} is far from the largest number.
COLDEST = 0.05


def unit(v: Array) -> Array:
    # A square root has no derivative at 0, where a network with dead units may start.
    return v / jnp.sqrt(v @ v + jnp.finfo(v.dtype).tiny)


class Towers(eqx.Module):
    """Encoders of both views, on the unit sphere; of the weights, the part that is the model's."""

    x: Encoder
    z: Encoder
    learned: bool = eqx.field(static=True)

    def model(self, w: PyTree) -> PyTree:
        return w["model"] if self.learned else w

    def left(self, w: PyTree, x: Any) -> Array:
        return unit(self.x(self.model(w), x))

    def right(self, w: PyTree, z: Any) -> Array:
        return unit(self.z(self.model(w), z))


class Nearness(eqx.Module):
    """Level 1; a draw is an anchor and any pair of views, each with its number."""

    towers: Towers
    symmetric: bool = eqx.field(static=True)
    rows: int = eqx.field(static=True)

    def __call__(self, w: PyTree, pair: Any, *fixed: Array) -> PyTree:
        (x_i, z_i, i), (x_j, z_j, j) = pair
        temperature = w["temperature"] if self.towers.learned else fixed[0]
        anchor, partner = self.towers.left(w, x_i), self.towers.right(w, z_i)

        def near(cosine: Array) -> Array:
            return but_own(i, j, jnp.exp((cosine - anchor @ partner) / temperature), self.rows)

        u = {"x": near(anchor @ self.towers.right(w, z_j))}
        if self.symmetric:
            u["z"] = near(partner @ self.towers.left(w, x_j))
        return (u, temperature) if self.towers.learned else u


class Between(eqx.Module):
    """Cosines differ by at most 2, which bounds the means of the exponentials."""

    temperature: Array | None

    def __call__(self, value: PyTree) -> PyTree:
        u, temperature = value if self.temperature is None else (value, self.temperature)
        clipped = jax.tree.map(
            lambda x: jnp.clip(x, jnp.exp(-2 / temperature), jnp.exp(2 / temperature)), u
        )
        return (clipped, temperature) if self.temperature is None else clipped


def mean_log(value: PyTree) -> Array:
    u = value[0] if isinstance(value, tuple) else value
    return jnp.mean(jnp.stack([jnp.log(x) for x in u.values()]))


class Warmer(eqx.Module):
    """The feasible set where the temperature is a weight."""

    project: Callable[[PyTree], PyTree] | None

    def __call__(self, w: dict[str, PyTree]) -> dict[str, PyTree]:
        model = w["model"] if self.project is None else self.project(w["model"])
        return {"model": model, "temperature": jnp.maximum(w["temperature"], COLDEST)}


class Contrast(eqx.Module):
    """F in closed form, from all pairs."""

    towers: Towers
    X: Array
    Z: Array
    temperature: Array | None
    symmetric: bool = eqx.field(static=True)

    def __call__(self, w: PyTree) -> Array:
        temperature = w["temperature"] if self.temperature is None else self.temperature
        x = of_rows(lambda row: self.towers.left(w, row), self.X)
        z = of_rows(lambda row: self.towers.right(w, row), self.Z)
        places = jnp.arange(len(x))

        def loss(i: Array) -> Array:
            cosine = x[i] @ z[i]

            def side(anchor: Array, others: Array) -> Array:
                apart = (others @ anchor - cosine) / temperature
                return jax.nn.logsumexp(jnp.where(places == i, -jnp.inf, apart))

            left = side(x[i], z)
            return (left + side(z[i], x)) / 2 if self.symmetric else left

        return jnp.mean(over_anchors(loss, places, len(x))) - jnp.log(len(x) - 1)


def contrastive(
    X: Any,
    Z: Any,
    *,
    model: Encoder | None = None,
    partner: Encoder | None = None,
    w0: PyTree = None,
    dimension: int = 2,
    temperature: float = 0.2,
    learn_temperature: bool = False,
    symmetric: bool = False,
    visit: int | None = None,
    l2: float = 0.0,
    project: Callable[[PyTree], PyTree] | None = None,
    shared: bool | None = None,
    **problem: Any,
) -> Problem:
    """Encoders under which two views of a thing are nearer than views of different things.

    No pair is held: memory grows with the rows, and so does that of a method which remembers every
    anchor. The closed form looks at all pairs, in parts. If the temperature is learned, the weights are
    {"model": w, "temperature": τ}, otherwise those of the model.

    Args:
        X, Z: two views, row i of one belonging to row i of the other; at least 3 rows.
        model: ``model(w, x)``, the vector of a view, of any length; linear by default, W·x.
        partner: the same for the views Z, where they have an encoder of their own; it sees the same w,
            and takes what it needs of it.
        w0: the starting weights, a tree or ``fn(key)``; drawn for a linear encoder.
        dimension: rows of W, where it is drawn.
        temperature: τ, at least 0.05, so that e^{2/τ} is far from the largest number; if it is learned,
            where it begins.
        learn_temperature: whether τ is one of the weights.
        symmetric: whether every view is held against those of the other kind, or only X against Z.
        visit: how many anchors a step visits; all, but at most 16, by default.
        l2: strength of a penalty l2/2·‖w‖² on the model's weights.
        project: the feasible set of the model's weights.
        shared: whether the anchors of a step are held against the same ``batch_size`` pairs of views,
            so that the model is evaluated once for each. By default for a model of your own.
        problem: further arguments of ``nx.Problem``.
    """
    check_setting("temperature", temperature, f"at least {COLDEST}", lambda t: t >= COLDEST)
    check_setting("l2", l2, "at least 0", lambda x: x >= 0)
    if model is None and partner is not None:
        raise SettingError("partner is the encoder of Z beside a model for X: give both, or neither.")
    if model is not None and w0 is None:
        raise SettingError("a model of your own needs its starting weights: give w0.")
    views = [read_numbers(x, f"{name} of the views") for name, x in (("X", X), ("Z", Z))]
    alike = views[0].shape == views[1].shape or partner is not None
    tables = model is not None or views[0].ndim == 2
    if len({len(view) for view in views}) > 1 or not (alike and tables) or len(views[0]) < 3:
        raise ProblemError(
            "X and Z must be two arrays of one shape, at least 3 rows by columns, or with a partner of "
            f"equally many rows; got {views[0].shape} and {views[1].shape}."
        )
    if w0 is None:
        w0 = np.random.default_rng(0).standard_normal(
            (check_count("dimension", dimension), views[0].shape[1])
        )
        w0 = jnp.asarray(w0, float)
    shared = model is not None if shared is None else shared
    model = (lambda W, x: W @ x) if model is None else model
    towers = Towers(model, model if partner is None else partner, learn_temperature)
    dtype, X, Z = _fit(w0, towers, views)
    count = len(X)
    tau = jnp.asarray(temperature, dtype)
    places = np.arange(count)
    pairs = Conditional((X, Z, places), (X, Z, places), visit=default_visit(visit, count), shared=shared)
    fixed = None if learn_temperature else tau
    penalty = Ridge(jnp.asarray(l2, dtype), OfModel(None) if learn_temperature else None) if l2 else None
    return Problem(
        [
            Level(
                Nearness(towers, symmetric, count),
                pairs,
                args=() if fixed is None else (fixed,),
                project=Between(fixed),
                name="nearness",
            ),
            Level(mean_log, name="loss"),
        ],
        w0=with_dual(w0, {"temperature": tau}) if learn_temperature else w0,
        project=Warmer(project) if learn_temperature else project,
        penalty=penalty,
        exact=Contrast(towers, X, Z, fixed, symmetric),
        **problem,
    )


def _fit(w0: PyTree, towers: Towers, views: list[np.ndarray]) -> tuple[Any, Array, Array]:
    """Returns the dtype of the weights, and the views in it; refuses encoders that do not fit."""
    start = start_of(w0)
    dtype = dtype_of(start)
    X, Z = trees.cast(tuple(jnp.asarray(view) for view in views), dtype)
    with refusing("model and views do not fit together"):
        ends = (towers.x(start, X[0]), towers.z(start, Z[0]))
    if any(getattr(v, "ndim", None) != 1 for v in ends) or ends[0].shape != ends[1].shape:
        shapes = " and ".join(str(jnp.shape(v)) for v in ends)
        raise ProblemError(
            f"encoders must return vectors of one length for both views; got shapes {shapes}."
        )
    if not all(bool(jnp.isfinite(v).all()) for v in ends):
        raise ProblemError(
            "the vectors of the first views are not finite at the start: choose another w0."
        )
    return dtype, X, Z
