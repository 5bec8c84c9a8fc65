"""One block, always visited: a method with memory of every block is one that knows no blocks.

SOX, whose gradient is not averaged, is T-SCGD; MSVR is product SMVR a step late; Block SMVR tracks what
AdjointSMVR tracks, but for the adjoint of the innermost level, which it leaves raw.
"""

import jax
import numpy as np
import pytest
from tests.support.blocked import Blocked, blocked
from tests.support.compare import assert_same, flat
from tests.support.compiled import compiled_init, compiled_refresh, compiled_update
from tests.support.drive import BATCH, STEPS, drive
from tests.support.methods import ONE_BLOCK, every_method

import nestax as nx
from nestax.draws.blocks import Visits

RATE = 0.3
#: All that is drawn, so that both see the same.
PASSES = ("value", "grad")


def one_block(name="three_levels", **options) -> Blocked:
    return blocked(name, blocks=1, visit=1, **options)


def alone(case: Blocked, batches):
    """The batches of a chain with one block as those of the block itself."""
    return tuple(
        {name: level.source and level.source.batch(first(visit)) for name, visit in batch.items()}
        for level, batch in zip(case.problem.levels, batches, strict=True)
    )


def first(visit: Visits) -> Visits:
    return jax.tree.map(lambda x: x[0], visit)


def along(case: Blocked, run, relative):
    """Estimates and states of a method that knows no blocks, at the weights and draws of a run."""
    block = case.problem.block(0)
    relative = relative.defaults(block, STEPS, (BATCH,) * len(block.levels))
    out = []
    for t, (w, batches) in enumerate(zip(run.w, run.batches, strict=True)):
        own = alone(case, batches)
        if t == 0:
            out.append(compiled_init(relative, block, w, own))
        elif relative.period is not None and t % relative.period == 0:
            out.append(compiled_refresh(relative, block, w, own, out[-1][1]))
        else:
            out.append(compiled_update(relative, block, w, own, out[-1][1]))
    return [list(column) for column in zip(*out, strict=True)]


def both(case: Blocked, method, relative):
    """The run of a method on one block, and gradients, values and states of its relative along it."""
    run = drive(case.problem, method, case.lr, passes=PASSES)
    estimates, states = along(case, run, relative)
    grads = np.stack([flat(estimate.grad) for estimate in estimates])
    return run, grads, np.stack([estimate.value for estimate in estimates]), states


def relative_of(name):
    return every_method(RATE)[ONE_BLOCK.covers[name]]


@pytest.mark.parametrize("name", [n for n in ONE_BLOCK.covers if n.split()[0] in ("Plain", "PerBlock")])
def test_the_method_inside_is_the_method_itself(name):
    run, grads, values, _ = both(one_block(), every_method(RATE)[name], relative_of(name))
    assert_same(run.grads, grads)
    assert_same(run.values, values)


@pytest.mark.parametrize("name", ["NestedSPIDER", "NLASG", "PMM", "SSD", "STORMC"])
def test_whatever_the_method_inside(name):
    inside = every_method(RATE)[name]
    case = one_block("three_levels" if inside.about.levels is None else "two_levels")
    passes = PASSES if "jac" not in inside.passes else tuple(inside.passes)
    run = drive(case.problem, nx.PerBlock(inside), case.lr, passes=passes)
    assert_same(run.grads, [flat(estimate.grad) for estimate in along(case, run, inside)[0]])


def test_sox_is_tscgd():
    """With beta = 1, which leaves the gradient as it is drawn."""
    run, grads, values, _ = both(one_block("two_levels"), nx.SOX(RATE, 1.0), relative_of("SOX"))
    assert_same(run.grads, grads)
    assert_same(run.values, values)


def test_msvr_is_product_smvr_a_step_late():
    """But for its value, which is that of the outer function at the tracked inner value."""
    method, relative = nx.MSVR(RATE, RATE), relative_of("MSVR")
    run, grads, _, states = both(one_block("two_levels"), method, relative)
    assert_same(run.grads, grads)
    tracked = [method.trackers(state).value[0][0] for state in run.state]
    assert_same(tracked, [relative.trackers(state).value[0] for state in states])


def test_block_smvr_tracks_the_values_and_adjoints_of_adjoint_smvr():
    method, relative = nx.BlockSMVR(RATE), relative_of("BlockSMVR")
    run, grads, _, states = both(one_block(), method, relative)
    inner = lambda trees: np.stack([np.concatenate([flat(x) for x in tree]) for tree in trees])
    assert_same(
        inner([state.table.value[:-1] for state in run.state]),
        inner([relative.trackers(state).value[:-1] for state in states]),
    )
    assert_same(
        inner([state.table.adjoint for state in run.state]),
        inner([state.adjoint[1:] for state in states]),
    )
    assert np.abs(run.grads - grads).max() > 1e-3


def test_block_smvr_is_adjoint_smvr_where_the_innermost_level_is_exact():
    case = one_block()
    inner, *others = case.problem.levels
    row = jax.tree.map(lambda x: x[0, 0], inner.source.data)
    levels = [nx.Level(inner.fn, args=(row,), name=inner.name, project=inner.onto), *others]
    case = case._replace(problem=case.problem.replace(levels=levels))
    run, grads, _, _ = both(case, nx.BlockSMVR(RATE), relative_of("BlockSMVR"))
    assert_same(run.grads, grads)
