"""The first page of the documentation with ten seeds: do its asserts hold, how far off are weights?

python benchmarks/ten_seeds.py
"""

import contextlib
import functools
import io
import re

import numpy as np

import nestax as nx
from pages import DOCS
from script import parser, size

SEEDS = size(10, small=1)

if __name__ == "__main__":
    parser(__doc__).parse_args()
    page = (DOCS / "getting-started.md").read_text()
    code = compile("\n".join(re.findall(r"^```python\n(.*?)^```", page, re.M | re.S)), "page", "exec")
    usual = nx.minimize
    rows = []
    for seed in range(SEEDS):
        nx.minimize = functools.partial(usual, seed=seed)
        names: dict = {"__name__": "page"}
        with contextlib.redirect_stdout(io.StringIO()):
            exec(code, names)
        off = [
            float(np.linalg.norm(np.asarray(names[run].w) - names["best"]))
            for run in ("plain", "result")
        ]
        rows.append(off)
        print(
            f"seed {seed}: Plain {off[0]:.3f}, SelfTuning {off[1]:.3f} from the best weights", flush=True
        )
    print("largest and least:", np.max(rows, axis=0), np.min(rows, axis=0))
