"""Meta-learning of a starting point (MAML): K−1 inner gradient steps in every task, then its loss.

    f_i^m(x; B) = x − α ∇ℓ(x; B),  B drawn from the support rows of task m,   i = 1..K−1
    f_K^m(x; B) = ℓ(x; B),         B drawn from the query rows of task m
    F(w) = 1/M Σ_m f_K^m ∘ … ∘ f_1^m(w)

Finn, Abbeel, Levine: Model-agnostic meta-learning for fast adaptation of deep networks, ICML 2017; as
a multi-level problem in Jiang et al., ICML 2022. The inner levels belong to their task, so this is a
chain with blocks. It is truly multi-level only where support rows are subsampled: with all of them in
every inner step the inner levels have no noise, and what is left is the draw of tasks and query rows.
"""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, PyTree

import nestax.trees as trees
from nestax.chain.level import Level
from nestax.chain.problem import Problem
from nestax.draws.blocks import Blocks
from nestax.errors import ProblemError, SettingError, check_count, check_setting
from nestax.problems.few_shot import networks
from nestax.problems.few_shot.tasks import Tasks, check_tasks, sinusoids
from nestax.problems.losses import RowLoss, multinomial, refusing, squared, start_of


class MeanLoss(eqx.Module):
    """ℓ(w; B): the mean over the examples of all rows of a batch."""

    row_loss: RowLoss

    def __call__(self, w: PyTree, rows: tuple[Array, Array], images: Array | None = None) -> Array:
        return jnp.mean(self.each(w, rows, images))

    def each(self, w: PyTree, rows: tuple[Array, Array], images: Array | None) -> Array:
        """Returns the loss of every example."""
        return self.row_loss.each(w, self._examples(w, rows, images))

    def scores(self, w: PyTree, rows: tuple[Array, Array], images: Array | None) -> Array:
        """For every example 1 if the class is right, or the loss of a regression."""
        x, y = self._examples(w, rows, images)
        if not jnp.issubdtype(y.dtype, jnp.integer):
            return self.row_loss.each(w, (x, y))
        guess = jax.vmap(lambda example: jnp.argmax(self.row_loss.model(w, example)))(x)
        return (guess == y).astype(_dtype(w))

    def _examples(self, w: PyTree, rows: tuple[Array, Array], images: Array | None) -> Any:
        """All examples of the rows in one list; images by number become ink at 1 and paper at 0."""
        x, y = (a.reshape(-1, *a.shape[2:]) for a in rows)
        return (x if images is None else images[x].astype(_dtype(w)) / 255), y


class InnerStep(eqx.Module):
    """One step of gradient descent on a batch of support rows."""

    loss: MeanLoss

    def __call__(self, w: PyTree, rows: Any, lr: Array, images: Array | None = None) -> PyTree:
        grad = jax.grad(self.loss)(w, rows, images)
        return jax.tree.map(lambda x, g: x - lr * g, w, grad)


class Adapted(eqx.Module):
    """Mean over tasks of the score on query rows, after steps on all support rows.

    The score is the share of right classes, or the loss of a regression.
    """

    step: InnerStep
    tasks: Tasks
    lr: Array
    steps: int = eqx.field(static=True)
    at_once: int = eqx.field(static=True)

    def __call__(self, w: PyTree) -> Array:
        images = self.tasks.images

        def score(pair: Any) -> Array:
            support, query = pair

            def descend(_: int, w: PyTree) -> PyTree:
                return self.step(w, support, self.lr, images)

            adapted = jax.lax.fori_loop(0, self.steps, descend, w)
            return jnp.mean(self.step.loss.scores(adapted, query, images))

        pairs = (self.tasks.support, self.tasks.query)
        # Some tasks at a time: every one of them holds its own weights.
        return jnp.mean(jax.lax.map(score, pairs, batch_size=self.at_once))


def maml(
    model: Callable[[PyTree, Any], Array] | None = None,
    tasks: Tasks | None = None,
    w0: PyTree = None,
    *,
    visit: int = 8,
    inner_steps: int = 5,
    inner_lr: float = 0.01,
    loss: Callable[[Any, Any], Array] | None = None,
    score: dict[str, Tasks] | None = None,
    **problem: Any,
) -> Problem:
    """Starting weights from which a few steps of gradient descent do well in every task.

    Draws are rows of a task, different ones within a batch; ``batch_size`` by level sets how many of
    them an inner step (levels "step 1", "step 2", …) and the outer loss ("query") see.

    Args:
        model: ``model(w, x)`` for one input x; by default a perceptron 1-40-40-1 (1,761 weights).
        tasks: an ``nx.problems.Tasks``; by default 200 sinusoids, ``nx.datasets.sinusoids()``.
        w0: starting weights, a tree or ``fn(key)``; needed with a model of your own.
        visit: how many tasks a step visits.
        inner_steps: K−1, at least 1.
        inner_lr: α, positive.
        loss: ``loss(prediction, y)`` of one example; by default cross-entropy for whole-number labels
            and the square for others.
        score: records to add, name to tasks: the mean score on query rows after ``inner_steps`` steps
            on all support rows of these tasks (share of right classes, or loss).
        problem: further arguments of ``nx.Problem``.
    """
    if model is None:
        network = networks.perceptron(1, 40, 40, 1)
        model = network.apply
        w0 = network.init if w0 is None else w0
    elif w0 is None:
        raise SettingError("a model of your own needs its starting weights: give w0.")
    check_count("inner_steps", inner_steps)
    check_setting("inner_lr", inner_lr, "positive", lambda a: a > 0)
    start = start_of(w0)
    tasks = _on_device(sinusoids() if tasks is None else tasks, start)
    if loss is None:
        whole = jnp.issubdtype(tasks.query[1].dtype, jnp.integer)
        loss = multinomial if whole else squared
    mean_loss = MeanLoss(RowLoss(model, loss))
    step = InnerStep(mean_loss)
    _refuse_bad_start(mean_loss, start, tasks)
    lr = jnp.asarray(inner_lr, _dtype(start))
    images = () if tasks.images is None else (tasks.images,)
    support = Blocks(tasks.support, visit=visit, replace=False)
    query = Blocks(tasks.query, visit=visit, replace=False)
    levels = [
        Level(step, support, args=(lr, *images), name=f"step {k}", batched=True)
        for k in range(1, inner_steps + 1)
    ]
    levels.append(Level(mean_loss, query, args=images, name="query", batched=True))
    metrics = {
        name: Adapted(step, _on_device(others, start), lr, inner_steps, visit)
        for name, others in (score or {}).items()
    }
    return Problem(levels, w0, metrics=metrics | problem.pop("metrics", {}), **problem)


def _on_device(tasks: Tasks, w: PyTree) -> Tasks:
    """Checked, and in the floating-point type of the weights."""
    return jax.tree.map(jnp.asarray, trees.cast(check_tasks(tasks), _dtype(w)))


def _dtype(w: PyTree) -> Any:
    return jnp.asarray(jax.tree.leaves(w)[0]).dtype


def _refuse_bad_start(loss: MeanLoss, w: PyTree, tasks: Tasks) -> None:
    rows = jax.tree.map(lambda a: a[0], tasks.query)
    with refusing("model, loss and tasks do not fit together"):
        losses = eqx.filter_jit(loss.each)(w, rows, tasks.images)
    if losses.ndim != 1:
        raise ProblemError(f"loss must be one number an example; it has the shape {losses.shape[1:]}.")
    if not jnp.isfinite(losses).all():
        raise ProblemError(
            f"losses of task 0 are not finite at the start, such as {losses[~jnp.isfinite(losses)][0]}: "
            "choose another w0, scale x, or give the model an output for every class."
        )
