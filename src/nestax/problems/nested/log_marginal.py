"""Log marginal likelihood of rows with latent variables: one block per row, K = 2.

    F(w) = −1/n Σ_i log E_z e^{a(w; x_i, z)},   z ~ q

level 1   f_1^i(w; z) = e^{a(w; x_i, z) − c_i}      weight
level 2   f_2^i(u) = −log u − c_i                   evidence, deterministic

a is log p(x|z, w) for z of the prior, or log p(x, z|w) − log q(z|x, w) for z = z(w, x, key) of q. c_i is
a reference, about log E e^a at the start. The mean over a few z inside of a logarithm is what an
importance-weighted bound takes, and is too low.

Burda, Grosse, Salakhutdinov: Importance weighted autoencoders, ICLR 2016.
"""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, PyTree

from nestax.chain.level import Level
from nestax.chain.problem import Problem
from nestax.draws.conditional import Conditional
from nestax.errors import ProblemError, check_count
from nestax.problems.coupled.pairs import default_visit
from nestax.problems.losses import of_rows, read_numbers, refusing, start_of
from nestax.problems.nested.ratios import Positive, dtype_of, ratio


class Weight(eqx.Module):
    """Level 1; a draw is a row with its reference, and a key, as words."""

    log_weight: Callable[[PyTree, Array, Array], Array]

    def __call__(self, w: PyTree, draw: Any) -> Array:
        (x, reference), key_data = draw
        log = jnp.reshape(self.log_weight(w, x, jax.random.wrap_key_data(key_data)), ())
        return ratio(log - reference)


def words(row: PyTree, key: Array) -> Array:
    del row
    return jax.random.key_data(key)


def log_marginal(
    X: Any,
    log_weight: Callable[[PyTree, Array, Array], Array],
    w0: PyTree,
    *,
    visit: int | None = None,
    start_draws: int = 64,
    **problem: Any,
) -> Problem:
    """Minus the mean log marginal likelihood of rows, to be minimised.

    Rows come back, so that a method with memory of every row removes the bias that few draws z have.

    Args:
        X: one row an example.
        log_weight: ``fn(w, x, key)``: draws z with the key, and returns a, the logarithm of its weight.
        w0: the starting weights, a tree or ``fn(key)``.
        visit: how many rows a step visits; all, but at most 16, by default. A step draws ``batch_size``
            z for each.
        start_draws: how many z are drawn for each row at the start, for its reference.
        problem: further arguments of ``nx.Problem``.
    """
    if not callable(log_weight):
        raise ProblemError(f"log_weight must be a function; got {type(log_weight).__name__}.")
    X = read_numbers(X, "X of the data")
    start = start_of(w0)
    dtype = dtype_of(start)
    X = jnp.asarray(X, dtype if X.dtype.kind == "f" else None)
    keys = jax.random.split(jax.random.key(0), check_count("start_draws", start_draws))

    def reference(x: Array) -> Array:
        logs = jax.vmap(lambda key: jnp.reshape(log_weight(start, x, key), ()))(keys)
        return jax.nn.logsumexp(logs) - np.log(len(keys))

    with refusing("log_weight, rows and w0 do not fit together"):
        references = jax.jit(lambda X: of_rows(reference, X))(X)
    bad = np.flatnonzero(~np.isfinite(references))
    if bad.size:
        raise ProblemError(
            f"the log weights of row {bad[0]} give {references[bad[0]]} at the start: choose another "
            "w0, or draws z that can have made it."
        )
    # Near E e^a at the start, so that weights are numbers of about 1 in single precision, too.
    rows = (X, references)
    visit = default_visit(visit, len(X))
    return Problem(
        [
            Level(
                Weight(log_weight),
                Conditional(rows, words, visit=visit),
                project=Positive(dtype),
                name="weight",
            ),
            Level(lambda u, row: -jnp.log(u) - row[1], Conditional(rows, visit=visit), name="evidence"),
        ],
        w0=w0,
        **problem,
    )
