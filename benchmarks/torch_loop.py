"""Dense SMVR on the mean-deviation portfolio in PyTorch, Jacobians by ``torch.func.jacrev``.

``python benchmarks/torch_loop.py case.npz`` prints one JSON line: microseconds of CPU time and of
wall time per step, and the weights after the rows ``indices`` of the case; with --small it makes up a
case. It needs PyTorch and NumPy only, so it runs in an environment of its own.
"""

import json
import time

import numpy as np
import torch
from torch.func import jacrev

from portfolio import Settings, random_indices
from script import SMALL, parser, size

#: Steps of a short and of a long run, and how often both are timed.
LENGTHS = size((20, 120), small=(2, 4))
ROUNDS = size(4, small=1)


def project_simplex(x: torch.Tensor) -> torch.Tensor:
    """Euclidean projection onto the simplex, by sorting."""
    ordered = torch.sort(x, descending=True).values
    theta = (torch.cumsum(ordered, 0) - 1) / torch.arange(1, len(x) + 1, dtype=x.dtype)
    size = torch.count_nonzero(ordered > theta)
    return torch.clamp(x - theta[size - 1], min=0)


def mean_level(x: torch.Tensor, r: torch.Tensor) -> torch.Tensor:
    """f_1(x) = (r·x, x)."""
    return torch.cat([(r @ x)[None], x])


def variance_level(u: torch.Tensor, r: torch.Tensor) -> torch.Tensor:
    """f_2(y, x) = (y, (r·x − y)²)."""
    return torch.stack([u[0], (r @ u[1:] - u[0]) ** 2])


def utility_level(u: torch.Tensor, risk: float, delta: float) -> torch.Tensor:
    """f_3(y, z) = −y + λ·sqrt(z + δ)."""
    return (-u[0] + risk * torch.sqrt(u[1] + delta))[None]


def value_and_jac(level, *args):
    """The value of a level and its Jacobian with respect to the first argument, in one pass."""
    twice = lambda *a: (out := level(*a), out)
    jac, value = jacrev(twice, has_aux=True)(*args)
    return value, jac


def smvr(rows: torch.Tensor, indices: torch.Tensor, settings: Settings) -> torch.Tensor:
    """The weights after one step per given pair of rows; the first pair is the start."""
    beta, lr, risk, delta = settings
    keep = 1 - beta
    d = rows.shape[1]
    w = torch.full((d,), 1 / d, dtype=rows.dtype)
    u1, J1 = value_and_jac(mean_level, w, rows[indices[0, 0]])
    u2, J2 = value_and_jac(variance_level, u1, rows[indices[0, 1]])
    for a, b in indices[1:]:
        J3 = jacrev(utility_level)(u2, risk, delta)
        old_w = w
        old_u1 = u1
        w = project_simplex(w - lr * (J3 @ J2 @ J1)[0])

        f_new, J_new = value_and_jac(mean_level, w, rows[a])
        f_old, J_old = value_and_jac(mean_level, old_w, rows[a])
        u1 = f_new + keep * (u1 - f_old)
        J1 = J_new + keep * (J1 - J_old)

        f_new, J_new = value_and_jac(variance_level, u1, rows[b])
        f_old, J_old = value_and_jac(variance_level, old_u1, rows[b])
        u2 = f_new + keep * (u2 - f_old)
        J2 = J_new + keep * (J2 - J_old)
        u2 = torch.stack([u2[0], torch.clamp(u2[1], min=0)])
    return w


def measure(rows: torch.Tensor, settings: Settings, short: int, long: int, rounds: int) -> dict:
    """Microseconds per step, fixed cost excluded: the least of some runs of two lengths."""
    least = {}
    for _ in range(rounds):
        for steps in (short, long):
            indices = torch.as_tensor(random_indices(steps, len(rows)))
            cpu = time.process_time()
            wall = time.perf_counter()
            smvr(rows, indices, settings)
            took = np.array([time.process_time() - cpu, time.perf_counter() - wall])
            least[steps] = np.minimum(least.get(steps, np.inf), took)
    cpu, wall = (least[long] - least[short]) / (long - short) * 1e6
    return {"cpu": cpu, "wall": wall}


def made_up() -> dict[str, np.ndarray]:
    """A case of 50 rows and 3 assets."""
    rows = np.random.default_rng(0).standard_normal((50, 3), np.float32)
    return {"rows": rows, "indices": random_indices(5, len(rows)), "settings": np.array(Settings())}


def main() -> None:
    arguments = parser(__doc__)
    arguments.add_argument(
        "case", nargs="?" if SMALL else None, help="an .npz file: rows, indices, settings"
    )
    given = arguments.parse_args().case
    case = made_up() if given is None else np.load(given)
    torch.set_num_threads(1)
    rows = torch.as_tensor(case["rows"])
    settings = Settings(*case["settings"].tolist())
    w = smvr(rows, torch.as_tensor(case["indices"]), settings)
    took = measure(rows, settings, *LENGTHS, ROUNDS)
    print(json.dumps({**took, "w": w.tolist(), "version": torch.__version__}))


if __name__ == "__main__":
    main()
