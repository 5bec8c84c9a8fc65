"""Programs that take little time to compile, and what compiled steps of a run take."""

import functools
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp


def accepted(**options) -> dict[str, Any]:
    """The compiler options that this version of XLA knows."""
    known = {}
    for name, value in options.items():
        try:
            jax.jit(lambda x: x).lower(1.0).compile(compiler_options={name: value})
            known[name] = value
        except jax.errors.JaxRuntimeError:
            continue
    return known


# A dozen steps take less time than compiling them, so compile quickly rather than well.
quick_jit = functools.partial(
    eqx.filter_jit,
    compiler_options=accepted(xla_backend_optimization_level=0, xla_cpu_use_fusion_emitters=False),
)


@quick_jit
def compiled_step(rule, problem, w, estimate, state):
    return rule.update(problem, w, estimate.grad, estimate.aux, state)


@quick_jit
def compiled_init(estimator, problem, w, batches):
    return estimator.init(problem, w, batches)


@quick_jit
def compiled_update(estimator, problem, w, batches, state):
    return estimator.update(problem, w, batches, state)


@quick_jit
def compiled_refresh(estimator, problem, w, batches, state):
    return estimator.refresh(problem, w, batches, state)


def steps_memory(compiled) -> Any:
    """What the compiled steps of a run take, as the compiler tells it."""
    carry = tuple(jax.ShapeDtypeStruct(*of) for of in compiled.carried().values())
    numbers = [jnp.zeros((), jnp.int32)] * 3
    lowered = compiled.advancing().lower(jax.tree.leaves(compiled.run), carry, *numbers)
    return lowered.compile().memory_analysis()
