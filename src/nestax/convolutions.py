"""Convolutions in the order of axes that XLA is fast with on a CPU.

XLA hands a convolution to a tuned routine only if its axes are in one order, rows first and channels
last. It brings others into that order itself, but not inside of loops, and a run is a loop: there
derivatives, and convolutions with channels first, took more than ten times as long as outside. So axes
are put into order here, where a function has just been traced.
"""

from collections.abc import Sequence
from typing import Any

import jax
from jax.extend.core import ClosedJaxpr, Jaxpr, JaxprEqn, Literal

CONVOLUTION = "conv_general_dilated"
Axes = Sequence[int]


def in_order(jaxpr: Jaxpr) -> Jaxpr:
    """The same computation, with all convolutions of it, inner ones too, in the fast order of axes."""
    eqns = [new for eqn in jaxpr.eqns for new in _in_order(eqn)]
    same = len(eqns) == len(jaxpr.eqns) and all(map(lambda a, b: a is b, eqns, jaxpr.eqns))
    return jaxpr if same else jaxpr.replace(eqns=eqns)


def _in_order(eqn: JaxprEqn) -> list[JaxprEqn]:
    if eqn.primitive.name == CONVOLUTION:
        return _convolution(eqn)
    params = {name: _parameter(value) for name, value in eqn.params.items()}
    same = all(params[name] is value for name, value in eqn.params.items())
    return [eqn if same else eqn.replace(params=params)]


def _parameter(value: Any) -> Any:
    """A parameter of an equation, of which jaxprs are changed."""
    if isinstance(value, Jaxpr):
        return in_order(value)
    if isinstance(value, ClosedJaxpr):
        inner = in_order(value.jaxpr)
        return value if inner is value.jaxpr else ClosedJaxpr(inner, value.consts)
    if isinstance(value, tuple | list) and any(isinstance(v, Jaxpr | ClosedJaxpr) for v in value):
        new = type(value)(map(_parameter, value))
        return value if all(map(lambda a, b: a is b, new, value)) else new
    return value


def _convolution(eqn: JaxprEqn) -> list[JaxprEqn]:
    params = eqn.params
    numbers = params["dimension_numbers"]
    # What JAX tells: batch, channel, rows, … of the input and the output; output and input channels,
    # rows, … of the kernel.
    of_input = _channels_last(numbers.lhs_spec)
    of_kernel = (*numbers.rhs_spec[2:], numbers.rhs_spec[1], numbers.rhs_spec[0])
    of_output = _channels_last(numbers.out_spec)
    ranks = range(len(of_input))
    if params["batch_group_count"] != 1 or of_input == of_kernel == of_output == tuple(ranks):
        return [eqn]
    back = tuple(of_output.index(k) for k in ranks)
    last = len(ranks) - 1
    straight = type(numbers)(
        lhs_spec=(0, last, *ranks[1:-1]),
        rhs_spec=(last, last - 1, *ranks[:-2]),
        out_spec=(0, last, *ranks[1:-1]),
    )

    def ordered(x: Any, kernel: Any) -> Any:
        x, kernel = jax.lax.transpose(x, of_input), jax.lax.transpose(kernel, of_kernel)
        out = eqn.primitive.bind(x, kernel, **params | {"dimension_numbers": straight})
        return jax.lax.transpose(out, back)

    kinds: list[Any] = [x.aval for x in eqn.invars]
    new = jax.make_jaxpr(ordered)(*(jax.ShapeDtypeStruct(x.shape, x.dtype) for x in kinds)).jaxpr
    outer = dict(zip([*new.invars, *new.outvars], [*eqn.invars, *eqn.outvars], strict=True))

    def outside(atoms: list[Any]) -> list[Any]:
        return [a if isinstance(a, Literal) else outer.get(a, a) for a in atoms]

    return [e.replace(invars=outside(e.invars), outvars=outside(e.outvars)) for e in new.eqns]


def _channels_last(axes: Axes) -> tuple[int, ...]:
    batch, channel, *spatial = axes
    return (batch, *spatial, channel)
