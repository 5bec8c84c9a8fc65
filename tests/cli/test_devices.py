"""``--devices``: the cores of a processor as devices that share the work of a command."""

import json
import os
import subprocess
import sys

import jax
import pytest
from tests.conftest import quick_flags
from typer.testing import CliRunner

from nestax.cli import app


def typed(*arguments):
    """The numbers of a command, typed in a process of its own."""
    env = os.environ | {"XLA_FLAGS": quick_flags(), "JAX_PLATFORMS": "cpu"}
    command = [sys.executable, "-m", "nestax", *arguments, "--json"]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.slow
@pytest.mark.parametrize(
    "arguments",
    [
        ["compare", "--methods", "SMVR", "--samples", "2000", "--seeds", "2"],
        ["portfolio", "synthetic", "--lr", "0.01", "--samples", "20000"],
    ],
)
def test_two_devices_give_what_one_does(arguments):
    assert typed(*arguments, "--devices", "2") == typed(*arguments, "--devices", "1")


def test_more_devices_than_there_are_is_one_sentence():
    many = len(jax.devices()) + 1
    done = CliRunner().invoke(app, ["portfolio", "synthetic", "--devices", str(many)])
    assert done.exit_code == 2
    assert f"--devices {many} asks for more than the {many - 1} there are." in done.output
