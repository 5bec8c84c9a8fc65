"""What estimators with ``fit`` share: the settings of a run, the run, and its carry as NumPy."""

import dataclasses
import math
import warnings
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from sklearn.base import BaseEstimator
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils import check_random_state

import nestax.errors as errors
from nestax.chain.problem import Problem
from nestax.errors import Range, check_count
from nestax.loop.status import Status
from nestax.parts.estimator import AbstractEstimator
from nestax.parts.step_rule import AbstractStep
from nestax.run.minimize import minimize
from nestax.run.result import Continuation, Result

#: Where a number among the settings must lie, as scikit-learn's users say it.
POSITIVE = Range("a positive number", lambda x: 0 < x < math.inf)
AT_LEAST_0 = Range("a number of at least 0", lambda x: 0 <= x < math.inf)


@dataclasses.dataclass(kw_only=True, eq=False, repr=False)
class Fitted(BaseEstimator):
    """An estimator that ``fit`` finds by a run of a method.

    A subclass is a dataclass whose fields are its settings, as scikit-learn wants them: named, with
    defaults, and kept as they are given. What it says about these is the place to read about them.
    """

    method: Any
    max_iter: int = 2_000
    batch_size: int = 16
    learning_rate: Any
    random_state: Any = None

    def _check_settings(self) -> None:
        check_count("max_iter", self.max_iter)
        check_count("batch_size", self.batch_size)

    def _begin_run(self) -> None:
        self._seed = check_random_state(self.random_state).randint(2**31 - 1)
        self.n_iter_ = self.samples_ = 0

    def _minimize(
        self,
        problem: Problem,
        method: AbstractEstimator,
        step: AbstractStep | None,
        *,
        steps: int,
        stride: int,
        carry: Continuation | None = None,
    ) -> Result:
        """Runs a method and counts what it spends; the caller says how it ended."""
        spent = 0 if carry is None else carry.cost.samples
        with warnings.catch_warnings(action="ignore", category=errors.ConvergenceWarning):
            result = minimize(
                problem,
                method,
                step,
                steps=steps,
                batch_size=self.batch_size,
                seed=self._seed,
                record=[],
                record_every=stride,
                start=carry,
                progress=False,
            )
        if result.status is Status.INTERRUPTED:
            raise KeyboardInterrupt
        self.n_iter_ += steps
        self.samples_ += result.carry.cost.samples - spent
        return result


def warn_if_not_finite(result: Result, stacklevel: int) -> None:
    """Warns of a run that broke down, as scikit-learn's users expect it."""
    if result.status is Status.NONFINITE:
        warnings.warn(result.message, ConvergenceWarning, stacklevel=stacklevel + 1)


def without_jax(carry: Continuation) -> Continuation:
    """Turns a carry into NumPy arrays, so that an estimator can be copied, hashed and pickled."""
    leaves = [np.asarray(x) for x in jax.tree.leaves(carry.lane)]
    # A typed key cannot be pickled, its data can.
    return dataclasses.replace(carry, lane=leaves, key=np.asarray(jax.random.key_data(carry.key)))


def with_jax(carry: Continuation | None) -> Continuation | None:
    """Turns what ``without_jax`` made back into a carry for ``minimize(start=...)``."""
    if carry is None:
        return None
    return dataclasses.replace(carry, key=jax.random.wrap_key_data(jnp.asarray(carry.key)))
