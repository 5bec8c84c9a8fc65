"""How to track a value in many blocks of which few are visited: three corrections compared.

The weights move on a circle at constant speed, whatever the trackers do; M = 64 blocks of g_m(w; ξ) =
tanh(A_m w) + noise, of which B are visited per step with four draws each. After its visit a block's
tracker is compared with g_m(w); the numbers are root mean squares over visits, divided by that of four
fresh draws alone, so that 1 is what a method without memory has. All rules see the same visits, draws
and weights.

    last visit    STORM between this visit and the block's last, whose weights are stored (PerBlock)
    γ'            MSVR: STORM between this step and the one before, times γ' (MSVR, BlockSMVR)
    last step     STORM between this step and the one before, as if all blocks were visited
    average       moving average (SOX)

Writes benchmarks/results/block_corrections.csv and the table of docs/blocks.md.
"""

import jax
import jax.numpy as jnp
import numpy as np

from nestax.draws.blocks import subset
from nestax.parts.tracking import average, storm, storm_of_blocks
from nestax.table import Table
from pages import fill
from script import parser, results, size

M = 64
D = 10
OUTPUTS = 5
BATCH = 4
#: Length of a step of the weights, and how much single draws of g and of its slope vary.
SPEEDS = (0.003, 0.03)
NOISE = 0.5
VISITS = size(200, small=2)
#: How many of the M blocks are visited per step.
VISITED = size((64, 16, 4, 1), small=(64, 4))


def slopes() -> jax.Array:
    return jax.random.normal(jax.random.key(0), (M, OUTPUTS, D)) / D**0.5


def g(A, w, xi):
    """The mean over four draws; each has a slope and an offset of its own."""
    tilt, offset = xi
    return jnp.mean(jnp.tanh((A + NOISE * tilt) @ w) + NOISE * offset, axis=0)


def truth(A, w, many):
    """E tanh((A + tilt)w), over many draws that are common to all."""
    return jnp.mean(jnp.tanh((A + NOISE * many) @ w), axis=0)


def on_circle(t, speed):
    """Radius 1, around a point that is not the origin."""
    angle = speed * t
    return jnp.zeros(D).at[:3].set(jnp.stack([jnp.cos(angle), jnp.sin(angle), 1.0]))


def errors(visit: int, beta: float, speed: float) -> dict[str, float]:
    A = slopes()
    keep = 1 - beta
    steps = VISITS * M // visit
    many = jax.random.normal(jax.random.key(5), (512, OUTPUTS, D))
    weights = lambda t: on_circle(t, speed)
    first = jax.vmap(lambda A: truth(A, weights(0), many))(A)
    names = ("last visit", "γ'", "last step", "average")
    tables = dict.fromkeys(names, first) | {"w": jnp.tile(weights(0), (M, 1))}

    def step(tables, t):
        key = jax.random.fold_in(jax.random.key(1), t)
        blocks = subset(key, M, visit) if visit < M else jnp.arange(M)
        keys = jax.random.split(jax.random.fold_in(key, 1), visit)
        w = weights(t)
        before = weights(t - 1)

        def one(block, key):
            own = {name: table[block] for name, table in tables.items()}
            tilt, offset = jax.random.split(key)
            xi = (
                jax.random.normal(tilt, (BATCH, OUTPUTS, D)),
                jax.random.normal(offset, (BATCH, OUTPUTS)),
            )
            new = g(A[block], w, xi)
            old = g(A[block], before, xi)
            rows = {
                "last visit": storm(new, keep, own["last visit"], g(A[block], own["w"], xi)),
                "γ'": storm_of_blocks(new, keep, own["γ'"], old, M, visit),
                "last step": storm(new, keep, own["last step"], old),
                "average": average(own["average"], beta, new),
                "w": w,
            }
            exact = truth(A[block], w, many)
            off = {name: jnp.sum((rows[name] - exact) ** 2) for name in names}
            return rows, off | {"fresh": jnp.sum((new - exact) ** 2)}

        rows, off = jax.vmap(one)(blocks, keys)
        tables = {name: table.at[blocks].set(rows[name]) for name, table in tables.items()}
        return tables, jax.tree.map(jnp.mean, off)

    _, off = jax.jit(lambda tables: jax.lax.scan(step, tables, jnp.arange(1, steps + 1)))(tables)
    late = {name: float(np.mean(np.asarray(x)[steps // 4 :])) for name, x in off.items()}
    return {name: (late[name] / late["fresh"]) ** 0.5 for name in names}


if __name__ == "__main__":
    parser(__doc__).parse_args()
    rows = []
    for speed in SPEEDS:
        for beta in (0.1, 0.3):
            for visit in VISITED:
                found = errors(visit, beta, speed)
                rows.append([speed, beta, M // visit, *found.values()])
                print(*(f"{x:.3g}" for x in rows[-1]), flush=True)
    table = Table(["length of a step", "beta", "M/B", *found], rows)
    table.to_csv(results("block_corrections.csv"))
    shown = Table(table.columns, [[f"{x:.3g}" for x in row] for row in rows])
    fill("blocks.md", {"corrections table": shown.to_markdown()})
