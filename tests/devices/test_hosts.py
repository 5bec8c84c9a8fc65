"""What is said where a process is gone."""

import pytest
from jax.experimental import multihost_utils

from nestax.devices.hosts import Hosts, ProcessLostError

SENTENCE = "another process of this run has ended, and this one ends with it"


def hosts():
    """Of one of two processes."""
    made = Hosts()
    made.many = True
    return made


def gone(*_, **__):
    raise RuntimeError("UNKNOWN: Gloo all-gather failed: Connection closed by peer")


def test_a_process_that_is_gone_before_a_run_is_told_in_the_same_sentence(monkeypatch):
    monkeypatch.setattr(multihost_utils, "process_allgather", gone)
    with pytest.raises(ProcessLostError, match=f"^{SENTENCE}[.]$"):
        hosts().agree("data", bytes(8))


def test_inside_of_a_run_it_is_told_where_the_run_is(monkeypatch):
    monkeypatch.setattr(multihost_utils, "process_allgather", gone)
    with (
        pytest.raises(ProcessLostError, match=f"^{SENTENCE}: kept holds step 3[.]$"),
        hosts().together(lambda: "kept holds step 3"),
    ):
        hosts().any(True)


@pytest.mark.parametrize(
    "error",
    [RuntimeError("shapes differ"), KeyError("beta"), ConnectionError("the connection is gone")],
)
def test_other_errors_stay_as_they_are(error):
    with pytest.raises(type(error)) as caught, hosts().together():
        raise error
    assert caught.value is error
