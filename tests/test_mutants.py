"""Which faults `.ci/mutants` puts into a module, and which tests it runs for them."""

import importlib.machinery
import importlib.util
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
MODULE = '''"""What 1 + 1 is."""

def mean(x: Array, size: int = 3) -> Float[Array, "2"]:
    """The mean of 4 < 5."""
    if x is None:
        raise ValueError(f"{1 + 1} not {2}")
    warnings.warn("no" + "thing", stacklevel=2)
    pairs = zip(x, x, strict=True)
    return jnp.clip(jnp.mean(x, 0), 0.5) * size


def told(x) -> str:
    return "a" + x


α = jnp.where(β < 0, -γ, δ)
'''
CHANGES = {
    ("def mean(x: Array, size: int = 3)", "def mean(x: Array, size: int = 4)"),
    ("if x is None:", "if x is not None:"),
    ('warnings.warn("no" + "thing", stacklevel=2)', "pass"),
    ("jnp.clip(jnp.mean(x, 0), 0.5) * size", "jnp.clip(jnp.mean(x, 0), 0.5) / size"),
    ("jnp.clip(jnp.mean(x, 0), 0.5)", "(jnp.mean(x, 0))"),
    ("jnp.mean(x, 0)", "jnp.sum(x, 0)"),
    ("jnp.mean(x, 0)", "jnp.mean(x, 1)"),
    ("0.5", "1.0"),
    ("β < 0", "β <= 0"),
    ("β < 0", "β < 1"),
    ("-γ", "(γ)"),
    ("jnp.where(β < 0, -γ, δ)", "jnp.where(β < 0, δ, -γ)"),
}


@pytest.fixture(scope="module")
def mutants():
    """The script, which has no ending."""
    loader = importlib.machinery.SourceFileLoader("mutants", str(ROOT / ".ci/mutants"))
    module = importlib.util.module_from_spec(importlib.util.spec_from_loader("mutants", loader))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "dont_write_bytecode", True)
        loader.exec_module(module)
    return module


def test_every_kind_of_fault_and_none_in_words(mutants):
    texts = {fault.text for fault in mutants.faults_of("parts/some.py", MODULE, 0)}
    assert texts == {MODULE.replace(old, new, 1) for old, new in CHANGES}


def test_a_choice_is_the_same_after_a_change_elsewhere(mutants):
    name = lambda text: {fault.name for fault in mutants.faults_of("parts/some.py", text, 0)}
    assert name(MODULE) == name(MODULE.replace('return "a" + x', 'return "b"\n\n\nγ = None'))
    first, other = (list(mutants.every_fault(seed)) for seed in (0, 1))
    chosen = mutants.choose(first, 50)
    assert len({(fault.module, fault.line) for fault in chosen}) == 50
    assert chosen == mutants.choose(first, 120)[:50]
    assert not {fault.name for fault in chosen} >= {fault.name for fault in mutants.choose(other, 50)}


def test_every_accepted_fault_is_one_and_has_a_reason(mutants):
    reasons = mutants.read_reasons()
    assert all(len(reason) > 20 for reason in reasons.values())
    assert reasons.keys() <= {fault.name for fault in mutants.every_fault(0)}


def test_every_test_that_is_named_exists(mutants):
    for tests in (*mutants.NEXT_TO.values(), mutants.WIDER):
        assert all((ROOT / "tests" / test).exists() for test in tests), tests
    for fault in mutants.every_fault(0):
        for test in (*mutants.tests_next_to(fault.module), *mutants.wider_ring(fault.module)[:2]):
            assert (ROOT / test).exists(), (fault.module, test)
