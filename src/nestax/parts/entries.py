"""What a map does to the entries of the weights, as its trace tells: each by itself, or all alike."""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.extend.core import Jaxpr, Literal, Var
from jaxtyping import PyTree

#: Primitives that only call what they hold.
CALLS = ("jit", "pjit", "closed_call", "custom_jvp_call", "custom_vjp_call", "remat")
#: Primitives that make every entry of their result from the same entry of their arguments.
ENTRY_BY_ENTRY = (
    *("abs", "add", "and", "ceil", "clamp", "convert_element_type", "copy", "cos", "div", "eq"),
    *("exp", "exp2", "expm1", "floor", "ge", "gt", "integer_pow", "is_finite", "le", "log", "log1p"),
    *("logistic", "lt", "max", "min", "mul", "ne", "neg", "not", "or", "pow", "round", "rsqrt"),
    *("select_n", "sign", "sin", "sqrt", "square", "sub", "tanh"),
)
#: Those that move entries and change none.
MOVING = ("reshape", "squeeze", "expand_dims", "copy", "convert_element_type", "neg")
REDUCING = ("reduce_sum", "reduce_max", "reduce_min", "reduce_and", "reduce_or", "dot_general")

#: What becomes known of a value that depends on several entries of the weights.
MIXED = "mixed"
#: Or: of a number that is the same for all entries, of an array that has nothing to do with gradients,
#: of a sum of vectors with such numbers, and of anything else.
SAME, FIXED, VECTOR, BENT = range(4)

Rule = Callable[[Any, list[Any]], Any]


def by_entry(project: Callable[[PyTree], PyTree], w: PyTree) -> bool:
    """Whether a projection treats every entry of the weights by itself, as one onto a box does.

    The nearest point of such a set is the same in every diagonal metric.
    """
    # A function of its own, for JAX would look up a module by its arrays, which may be traced.
    jaxpr = jax.make_jaxpr(lambda w: project(w))(w).jaxpr
    shapes = [v.aval.shape for v in jaxpr.invars]

    def rule(eqn: Any, kinds: list[Any]) -> Any:
        seen = {kind for kind in kinds if kind is not None}
        if not seen:
            return None
        leaf = seen.pop()
        kept = all(v.aval.shape == shapes[leaf] for v in eqn.outvars) if leaf != MIXED else False
        return leaf if not seen and kept and eqn.primitive.name in ENTRY_BY_ENTRY else MIXED

    found = _follow(jaxpr, range(len(shapes)), rule, None)
    return all(kind is None or kind == k for k, kind in enumerate(found))


def bends(change: Callable[[PyTree, PyTree], PyTree], grad: PyTree, state: PyTree) -> bool:
    """Whether an optimiser's change is more than a sum of vectors with one factor for all their entries.

    Gradients, momenta and weights may be added, and scaled by numbers such as their lengths; a root or a
    sign of every entry bends the direction.
    """
    jaxpr = jax.make_jaxpr(change)(grad, state).jaxpr
    entries = len(jax.tree.leaves(grad))
    # Beside weights that are single numbers, such a number in the state may be a moment.
    single = any(v.aval.ndim == 0 for v in jaxpr.invars[:entries])

    def of_state(kind: Any) -> int:
        if not jnp.issubdtype(kind.dtype, jnp.floating):
            return FIXED if kind.ndim else SAME
        return VECTOR if kind.ndim or single else SAME

    kinds = [VECTOR] * entries + [of_state(v.aval) for v in jaxpr.invars[entries:]]
    return BENT in _follow(jaxpr, kinds, _factors, SAME)


def _factors(eqn: Any, kinds: list[Any]) -> int:
    """What a step of an optimiser makes of vectors and of numbers that are the same for all entries."""
    name = eqn.primitive.name
    scalar = all(v.aval.ndim == 0 for v in eqn.outvars)
    most = max(kinds, default=SAME)
    if name in REDUCING and scalar:
        return SAME
    if most == SAME:
        uniform = name in ENTRY_BY_ENTRY or name in MOVING or name == "broadcast_in_dim" or scalar
        return SAME if uniform else FIXED
    finite = name == "is_finite" or (name == "ne" and eqn.invars[0] is eqn.invars[1])
    if most == FIXED or finite:
        return FIXED
    if name in MOVING or name in ("add", "sub", "add_any"):
        return most
    first, *others = kinds
    fine = {
        "mul": SAME in kinds,
        "div": others == [SAME],
        "select_n": first in (SAME, FIXED),
    }
    return most if fine.get(name) else BENT


def _follow(jaxpr: Jaxpr, kinds: Sequence[Any], rule: Rule, number: Any) -> list[Any]:
    """The kinds of a jaxpr's results from those of its arguments; ``number`` is that of constants."""
    known: dict[Var, Any] = dict(zip(jaxpr.invars, kinds, strict=True))
    array = FIXED if number == SAME else number

    def shape(v):
        return getattr(v.aval, "shape", ())

    known |= {v: array if shape(v) else number for v in jaxpr.constvars}

    def kind(atom: Any) -> Any:
        return number if isinstance(atom, Literal) else known[atom]

    def inside(part: Any, sources: Sequence[Any]) -> list[Any]:
        return _follow(getattr(part, "jaxpr", part), sources, rule, number)

    for eqn in jaxpr.eqns:
        part = eqn.params.get("jaxpr", eqn.params.get("call_jaxpr"))
        sources = [kind(atom) for atom in eqn.invars]
        if eqn.primitive.name in CALLS and part is not None:
            results = inside(part, sources)
        elif eqn.primitive.name == "cond" and sources[0] == number:
            branches = [inside(branch, sources[1:]) for branch in eqn.params["branches"]]

            def joined(kinds):
                return MIXED if number is None else max(kinds)

            results = [
                joined(kinds) if len(set(kinds)) > 1 else kinds[0]
                for kinds in zip(*branches, strict=True)
            ]
        else:
            results = [rule(eqn, sources)] * len(eqn.outvars)
        known.update(zip(eqn.outvars, results, strict=True))
    return [kind(atom) for atom in jaxpr.outvars]
