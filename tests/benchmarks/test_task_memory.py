"""Variants of memory of tasks that benchmarks measure, against their recursions in NumPy."""

import sys
from pathlib import Path

import numpy as np
import pytest
from tests.estimators.test_block_methods import follow
from tests.support.blocked import blocked, drive_blocks
from tests.support.cases import noisy
from tests.support.compare import assert_same, flat
from tests.support.drive import STEPS, drive

sys.path.insert(0, str(Path(__file__).parent.parent.parent / "benchmarks"))
from task_memory import ProductSPIDER, TaskMemory

BETA = 0.3


@pytest.mark.parametrize(
    ("values", "gradient"), [("average", "raw"), ("linear", "average"), ("storm", "storm")]
)
def test_task_memory(values, gradient):
    """Three levels, of which two are tracked; B of M tasks a step."""
    case = blocked("three_levels")
    table, ws, v = {}, [], [None]

    def product(x, draws):
        """J_1ᵀ J_2ᵀ J_3ᵀ at the three inputs."""
        J = [case.levels[i].J(x[i], draws[i]["value"]) for i in range(3)]
        return (J[2] @ J[1] @ J[0]).ravel()

    def tracked(i, new, old, u, draws):
        level, xi = case.levels[i], draws[i]["value"]
        f = level.f(new, xi)
        if old is None:
            return f
        if values == "average":
            return (1 - BETA) * u + BETA * f
        if values == "storm":
            return f + (1 - BETA) * (u - level.f(old, xi))
        return (1 - BETA) * u + BETA * level.f(old, xi) + level.J(old, xi) @ (new - old)

    def step(t, w, visits):
        heads, tails, outer = [], [], []
        for m, draws in visits:
            old = table.get(m, (None, None, None))
            u_1 = case.levels[0].project(tracked(0, w, old[0], old[1], draws))
            u_2 = case.levels[1].project(tracked(1, u_1, old[1], old[2], draws))
            heads.append(product((w, u_1, u_2), draws))
            if t:
                tails.append(product((ws[-1], *old[1:]), draws))
            table[m] = (w, u_1, u_2)
            outer.append(case.levels[2].f(u_2, draws[2]["value"])[0])
        z = np.mean(heads, axis=0)
        if t == 0 or gradient == "raw":
            v[0] = z
        elif gradient == "average":
            v[0] = (1 - BETA) * v[0] + BETA * z
        else:
            v[0] = z + (1 - BETA) * (v[0] - np.mean(tails, axis=0))
        ws.append(w)
        return v[0], np.mean(outer)

    follow(case, drive_blocks(case, TaskMemory(BETA, values, gradient)), step)


def test_product_spider():
    """Differences of values and of the product between restarts, and nothing kept across them."""
    case = noisy("three_levels")
    run = drive(case.problem, ProductSPIDER(period=4, restart_batch=7), 0.05)
    x_old = v = None
    for t, draws in enumerate(run.draws):
        f = lambda i, x, draws=draws: case.levels[i].f(x, draws[i]["value"])
        J = lambda i, x, draws=draws: case.levels[i].J(x, draws[i]["value"])
        product = lambda x, J=J: (J(2, x[2]) @ J(1, x[1]) @ J(0, x[0])).ravel()
        x = [flat(run.w[t])]
        fresh = t % 4 == 0
        assert len(draws[0]["value"]) == (7 if fresh else 3)
        for i in range(2):
            u = f(i, x[i]) if fresh else x_old[i + 1] + f(i, x[i]) - f(i, x_old[i])
            x.append(case.levels[i].project(u))
        v = product(x) if fresh else v + product(x) - product(x_old)
        assert_same(flat(run.estimate[t].grad), v)
        x_old = x
    assert t == STEPS
