"""The contract of a step rule, and what runs: an estimator of the gradient with such a rule."""

import abc
import functools
import textwrap
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, PyTree

import nestax.trees as trees
from nestax.chain.problem import Problem
from nestax.errors import ProblemError, SettingError, users_part
from nestax.parts.estimator import AbstractEstimator, Drawn, first_batches
from nestax.parts.metric import landed, refuse_unreadable
from nestax.parts.settings import Settings, with_lifted_schedules, with_schedules
from nestax.programs import trace


class AbstractStep(Settings):
    """A step rule that knows the problem; its settings are numbers or schedules.

    Where an Optax optimiser returns a change of the weights, a step rule returns new weights inside
    the feasible set.
    """

    @property
    def asks_plain(self) -> bool:
        """Whether it wants ``aux["plain"]``, the gradient that a batch alone would have."""
        return False

    def init(self, w: PyTree) -> Any:
        """Returns the state at the start: by default the number of steps taken."""
        del w
        return jnp.zeros((), jnp.int32)

    @abc.abstractmethod
    def update(
        self, problem: Problem, w: PyTree, grad: PyTree, aux: dict[str, Array], state: Any
    ) -> tuple[PyTree, Any]:
        """Returns new weights and state.

        ``aux`` is what the estimator has to say besides the gradient; ``aux["value"]`` is the tracked F.
        """

    def ready(self, horizon: Array | int, dtype: Any) -> "AbstractStep":
        """This rule with its schedules filled in for a run of that length, in the dtype of w."""
        return with_schedules(self, horizon, str(dtype))

    def lifted(self, w: PyTree, aux: Callable[[], dict[str, Any]]) -> "AbstractStep":
        """The same rule with every number in it as a leaf, so that other ones never compile again.

        ``w`` and what ``aux()`` returns are trees of shapes.
        """
        del aux
        return with_lifted_schedules(self, str(jax.tree.leaves(w)[0].dtype))

    def check(self, problem: Problem) -> None:
        """Refuses a problem that lacks what this rule needs."""
        if problem.linear_oracle is not None and problem.feasible is None:
            raise ProblemError(
                f"{type(self).__name__} projects, and this problem has only a linear_oracle: use "
                "nx.steps.FrankWolfe(lr), or pass project= as well."
            )


class FromOptax(AbstractStep):
    """w_{t+1} = Π(w_t + change), the change that of an Optax optimiser.

    The optimiser receives the estimate as the gradient, and as extra arguments ``value``, ``grad`` and
    whatever else the estimator has to say. It sees half precision as single, in which its moments move.
    Π is the projection in the norm that it divides by, where it scales every entry by itself; see
    ``nestax.parts.metric``.
    """

    optimizer: optax.GradientTransformationExtraArgs

    def init(self, w: PyTree) -> Any:
        """Its first state; a line search begins with errors that are infinite, and a run must not."""
        state = self.optimizer.init(trees.as_average(w))

        def searches(x):
            return isinstance(x, optax.ScaleByZoomLinesearchState)

        def finite(x):
            return jax.tree.map(jnp.nan_to_num, x) if searches(x) else x

        return jax.tree.map(finite, state, is_leaf=searches)

    def update(self, problem: Problem, w: PyTree, grad: PyTree, aux: dict[str, Array], state: Any):
        seen = trees.as_average(grad)
        at = trees.as_average(w)
        change, state = self._call(seen, state, at, grad=seen, **aux)
        if problem.feasible is None:
            return optax.apply_updates(w, change), state

        def again(g, state):
            return self._call(g, state, at, grad=g, **aux)[0]

        return landed(problem, w, change, again, seen, state), state

    def _call(self, *args: Any, **named: Any) -> tuple[PyTree, Any]:
        """The optimiser's update, with a sentence where it asks for what a step does not have."""
        try:
            return self.optimizer.update(*args, **named)
        except (TypeError, ValueError) as error:
            raise lacking(error) from users_part(error)

    def ready(self, horizon: Array | int, dtype: Any) -> "FromOptax":
        return self

    def lifted(self, w: PyTree, aux: Callable[[], dict[str, Any]]) -> "FromOptax":
        """The optimiser as data: learning rates, decays and the numbers of schedules are leaves."""
        w = jax.eval_shape(trees.as_average, w)
        given = aux()
        functions = {name: x for name, x in given.items() if callable(x)}
        numbers = {name: x for name, x in given.items() if name not in functions}
        init = trace(self.optimizer.init, w, lift=True)
        call = functools.partial(self._call, **functions)
        update = trace(call, w, init.shapes(), w, grad=w, **numbers, lift=True)
        return FromOptax(optax.GradientTransformationExtraArgs(init, update))

    def check(self, problem: Problem) -> None:
        if problem.prox is not None:
            raise ProblemError(
                "a problem with prox= needs a step rule that knows its own length, which an Optax "
                "optimiser does not tell: use nx.steps.Descent(lr), or nx.steps.Adam(lr)."
            )
        if problem.feasible is None and problem.linear_oracle is not None:
            raise ProblemError(
                "this problem has a linear_oracle and no project, so an Optax optimiser would leave its "
                "feasible set: use nx.steps.FrankWolfe(lr), or pass project= as well."
            )
        if problem.feasible is not None:
            refuse_unreadable(problem, problem.feasible, self.optimizer, self._call)


def evaluation_weights(w: PyTree, state: Any) -> PyTree:
    """The weights that a run is about; schedule-free methods (Defazio et al., 2024) step beside them."""

    def is_free(x):
        return isinstance(x, optax.contrib.ScheduleFreeState)

    for part in filter(is_free, jax.tree.leaves(state, is_leaf=is_free)):
        found = optax.contrib.schedule_free_eval_params(part, w)
        return jax.tree.map(lambda x, like: x.astype(like.dtype), found, w)
    return w


def objective(problem: Problem) -> dict[str, Callable[..., Array]]:
    """F by the names under which optimisers ask for it; line searches refuse what they cannot use."""
    return {"value_fn": lambda w, obj_fn=None: problem.value(w), "obj_fn": problem.value}


def lacking(error: Exception) -> SettingError:
    """The sentence for an optimiser that asks for more than gradients and values."""
    told = " ".join(str(error).split())
    if "value_fn" in told or "obj_fn" in told:
        return SettingError(
            "this optimiser evaluates the objective itself, at points of its own, which takes F without "
            "noise: use it with nx.minimize and nx.Exact() on free weights, or another one, such as "
            "optax.adam(0.01)."
        )
    return SettingError(f"this optimiser cannot take a step here: {told}")


def as_step(optimizer: Any) -> AbstractStep:
    """Returns a step rule as it is, an Optax optimiser as one."""
    if isinstance(optimizer, AbstractStep):
        return optimizer
    if not (hasattr(optimizer, "init") and hasattr(optimizer, "update")):
        raise SettingError(
            "the third argument must be an Optax optimiser such as optax.sgd(0.1); got "
            f"{textwrap.shorten(repr(optimizer), 80)}."
        )
    return FromOptax(optax.with_extra_args_support(optimizer))


class Method(eqx.Module):
    """An estimator and a step rule; an Optax optimiser becomes one."""

    estimator: AbstractEstimator
    step: AbstractStep = eqx.field(converter=as_step)

    def check(self, problem: Problem) -> None:
        """Refuses a problem that the estimator or the step rule does not apply to."""
        self.estimator.check(problem)
        self.step.check(problem)

    def ready(self, problem: Problem, horizon: Array | int, sizes: tuple[int, ...]) -> "Method":
        """With everything filled in that depends on the problem and the run, in the dtype of w."""
        own = self.estimator.handing_plain() if self.step.asks_plain else self.estimator
        estimator = own.defaults(problem, horizon, sizes)
        return Method(estimator, self.step.ready(horizon, problem.dtype))

    def lifted(self, problem: Problem, ready: AbstractEstimator, sizes: tuple[int, ...]) -> "Method":
        """Returns the same method with every number of its schedules and of its optimiser as a leaf.

        Args:
            ready: its estimator with everything filled in; it tells what the optimiser is given.
            sizes: the draws of the start.
        """
        w = problem.shape.structs()
        exact = ready.period == 1 and ready.refresh_batch == "population"

        def aux() -> dict[str, Any]:
            def first(key: Array, w: PyTree) -> Any:
                return ready.init(problem, w, Drawn(first_batches(problem, ready, key, sizes)))[0]

            # Shapes alone: what an optimiser is given as extra arguments is part of its trace.
            estimate = jax.eval_shape(first, jax.random.key(0), w)
            return estimate.aux | {"value": estimate.value} | (objective(problem) if exact else {})

        return Method(self.estimator.lifted(problem.dtype), self.step.lifted(w, aux))
