"""Functions that are no function of their arguments alone, and what to do about each of them."""

import jax
import numpy as np

CHANGES_STATE = (
    "changes state while it is evaluated, as dropout does with its counter and batch norm with its "
    "statistics, and a level is a function of its input and its draw alone: let the draw bring the "
    "random key (an nx.Sampler that returns one), use statistics as they are (evaluation mode), or "
    "another norm."
)
#: What JAX and Flax raise, by name, where a function does what cannot be traced, and what to do instead.
UNTRACEABLE = {
    "TracerBoolConversionError": (
        "decides in Python (if, while, and, or, max) on a number that is known only when it runs: "
        "use jnp.where(condition, this, that), or jax.lax.cond."
    ),
    "TracerArrayConversionError": (
        "hands a number that is known only when it runs to NumPy: use jnp in place of np."
    ),
    "ConcretizationTypeError": (
        "makes a Python number of one that is known only when it runs (float(x), int(x), x.item(), "
        "range(n)): leave it an array, and use jnp and jax.lax."
    ),
    "TracerIntegerConversionError": (
        "uses a number that is known only when it runs as an index or a length in Python: make an array "
        "of what it looks into, or use jax.lax."
    ),
    # Flax, NNX and Linen, where a function changes a variable that was made outside of it
    "TraceContextError": CHANGES_STATE,
    "ModifyScopeVariableError": CHANGES_STATE,
    # Flax, where dropout is given no key
    "InvalidRngError": (
        'asks for a random key, as dropout does: let the draw bring one, rngs={"dropout": key} with an '
        "nx.Sampler that returns it, or switch dropout off (deterministic=True)."
    ),
}
THROWS_DICE = (
    "draws from np.random. That happens once, when the level is traced, and stays as it is "
    "for the whole run: let the draw bring what is random, nx.Sampler(lambda key: "
    "jax.random.normal(key, shape)), or rows of data."
)
ALWAYS_THE_SAME = (
    "has an nx.Sampler whose draws do not depend on the key, so that all of them are the same: draw "
    "with jax.random and not with np.random, nx.Sampler(lambda key: jax.random.normal(key, shape))."
)


def why_untraceable(error: Exception) -> str | None:
    """Says in words that help why a function could not be traced; None where the error is another."""
    kinds = {kind.__name__ for kind in type(error).__mro__}
    return next((words for kind, words in UNTRACEABLE.items() if kind in kinds), None)


def random_state() -> list[bytes]:
    """Where the random numbers of NumPy stand that every program shares.

    Those of Python's ``random`` say nothing: type checkers draw from them whenever a function is called.
    As bytes, because the array of its words has no truth value when two states are compared.
    """
    state = np.random.get_state(legacy=False)  # noqa: NPY002 (what others draw from)
    return [np.asarray(part).tobytes() for part in jax.tree.leaves(state)]
