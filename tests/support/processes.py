"""Real processes on this machine that compute together, bounded in time."""

import contextlib
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

from tests.conftest import quick_flags

WORKER = Path(__file__).parents[1] / "devices" / "worker.py"
ROOT = Path(__file__).parents[2]


class Ended(NamedTuple):
    """How a process ended: its exit code, the JSON it printed last, all it said, seconds it took."""

    code: int
    out: dict
    words: str
    seconds: float


class Processes:
    """``worker.py`` in several processes; killed, by their numbers, when the time is over."""

    def __init__(self, task, count=1, devices=1, folder=None, **env):
        self.texts = [tempfile.TemporaryFile("w+") for _ in range(count)]  # noqa: SIM115
        flags = f"{quick_flags()} --xla_force_host_platform_device_count={devices}"
        paths = os.pathsep.join([str(ROOT / "src"), str(ROOT), os.environ.get("PYTHONPATH", "")])
        env = os.environ | {"XLA_FLAGS": flags, "JAX_PLATFORMS": "cpu", "PYTHONPATH": paths} | env
        arguments = [str(count), str(free_port()), *([str(folder)] if folder else [])]
        self.began = time.perf_counter()
        self.running = [
            subprocess.Popen(
                [sys.executable, str(WORKER), task, str(number), *arguments],
                stdout=text,
                stderr=subprocess.STDOUT,
                env=env,
            )
            for number, text in enumerate(self.texts)
        ]

    def said(self, number):
        self.texts[number].seek(0)
        return self.texts[number].read()

    def wait_for(self, words, seconds=120):
        """Until the first process has said something."""
        until = time.perf_counter() + seconds
        while words not in self.said(0):
            assert time.perf_counter() < until, self.said(0)
            assert self.running[0].poll() is None, self.said(0)
            time.sleep(0.02)

    def wait(self, seconds=120):
        """How all of them have ended. Those that have not are killed, and the test fails."""
        until = time.perf_counter() + seconds
        took = {}
        try:
            while len(took) < len(self.running) and time.perf_counter() < until:
                for number, process in enumerate(self.running):
                    if number not in took and process.poll() is not None:
                        took[number] = time.perf_counter() - self.began
                time.sleep(0.02)
            assert len(took) == len(self.running), "\n\n".join(map(self.said, range(len(self.running))))
        finally:
            for process in self.running:
                if process.poll() is None:
                    process.kill()
                process.wait()
        ended = [self._ended(number, took[number]) for number in range(len(self.running))]
        for text in self.texts:
            text.close()
        return ended

    def _ended(self, number, seconds):
        words = self.said(number)
        out = {}
        with contextlib.suppress(ValueError, IndexError):
            out = json.loads(words.strip().splitlines()[-1])
        return Ended(self.running[number].returncode, out, words, seconds)


def free_port():
    with socket.socket() as found:
        found.bind(("localhost", 0))
        return found.getsockname()[1]
