"""Two processes that compute together: one is killed, or they differ in all that a host decides.

    python benchmarks/processes.py --kills 20 --runs 50 --at-once 4

A run is killed at a random moment, in one of its two processes. The other must end within a minute with
a sentence, its own or that of JAX, and the resumed run must have the bits of one that was never stopped.
"""

import json
import os
import random
import signal
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from script import SMALL, parser, results

sys.path.insert(0, str(Path(__file__).parent.parent))
SENTENCE = "another process of this run has ended, and this one ends with it"
#: JAX ends a process by itself where the first one is gone and nothing is being computed together.
OF_JAX = "This most likely indicates that another task died"


def killed(number: int) -> dict:
    from tests.support.processes import Processes

    from nestax.checkpoints.folder import Folder

    dice = random.Random(number)
    victim = dice.randrange(2)
    with tempfile.TemporaryDirectory() as folder:
        both = Processes("long", count=2, folder=folder)
        both.wait_for("begun")
        time.sleep(dice.random() * 12)
        os.kill(both.running[victim].pid, signal.SIGKILL)
        begin = time.perf_counter() - both.began
        other = both.wait(90)[1 - victim]
        kept = Folder(Path(folder) / "kept").load()
        step = 0 if kept is None else kept.facts["step"]
        again = Processes("ended", devices=2, folder=folder, REACH=str(step + 300_000)).wait(300)[0]
    return {
        "victim": victim,
        "step": step,
        "seconds": other.seconds - begin,
        "sentence": SENTENCE in other.words,
        "of JAX": OF_JAX in other.words,
        "code": other.code,
        "equal": bool(again.out) and again.out["resumed"] == again.out["whole"],
    }


def uneven(number: int) -> dict:
    from tests.support.processes import Processes

    del number
    with tempfile.TemporaryDirectory() as folder:
        first, second = Processes("together", count=2, folder=folder).wait(240)
    same = {**first.out, "seen": 0} == {**second.out, "seen": 0}
    return {"seconds": first.seconds, "equal": same and first.code == second.code == 0}


def tried(fn, number: int) -> dict:
    try:
        return fn(number)
    except AssertionError as error:
        return {"failed": str(error)[-2000:]}


def main() -> None:
    options = parser(__doc__)
    options.add_argument("--kills", type=int, default=1 if SMALL else 20)
    options.add_argument("--first", type=int, default=0, help="number of the first kill")
    options.add_argument("--runs", type=int, default=1 if SMALL else 50)
    options.add_argument("--at-once", type=int, default=2)
    chosen = options.parse_args()
    out = {}
    with ThreadPoolExecutor(chosen.at_once) as pool:
        for name, fn, count in (("kills", killed, chosen.kills), ("runs", uneven, chosen.runs)):
            out[name] = list(pool.map(lambda k, fn=fn: tried(fn, chosen.first + k), range(count)))
            results("processes.json").write_text(json.dumps(out, indent=1) + "\n")
    kills = out["kills"]
    told = lambda kill: kill.get("sentence") or kill.get("of JAX")
    good = [k for k in kills if k.get("equal") and told(k) and k["seconds"] <= 60]
    of_jax = sum(not kill["sentence"] for kill in good)
    print(
        f"{len(good)} of {len(kills)} kills: the other ended with a sentence, {of_jax} times "
        "that of JAX, and the resumed run is equal."
    )
    if good:
        print(f"The other took at most {max(k['seconds'] for k in good):.1f} seconds.")
    print(
        f"{sum(bool(r.get('equal')) for r in out['runs'])} of {len(out['runs'])} uneven runs are equal."
    )


if __name__ == "__main__":
    main()
