"""Measured costs against kept ones, on made-up numbers."""

import pytest
from benchmarks.kept import BUSY, SLOWER, SLOWER_ROUGHLY, compare, compare_section, ratios

HERE = {"processor": "one", "jax": "0.10"}
ROW = "µs, nestax SMVR ÷ kernel (sort)"


def costs(**rows):
    return {name.replace("_", " "): {"cpu": cpu, "wall": cpu} for name, cpu in rows.items()}


def section(ours, kernel=0.5, machine=HERE, share=1.0):
    rows = {"kernel (sort)": kernel, "nestax SMVR": ours, "kernel (Michelot)": 0.1, "NumPy loop": 40.0}
    return {
        "machine": machine,
        "µs": {name: {"cpu": cpu, "wall": cpu / share} for name, cpu in rows.items()},
    }


def test_a_ratio_is_that_to_the_first_row_of_a_table():
    assert ratios(section(2.0)) == {ROW: 4.0}


def test_what_is_no_table_of_costs_with_a_rival_is_left_out():
    found = {
        "machine": HERE,
        "bytes": {"kernel": {"temporary": 3}, "nestax": {"temporary": 4}},
        "exponent": {"SMVR": 1.2},
        "pytorch": {"cpu": 3.0, "wall": 3.0, "version": "2"},
        "µs": costs(SMVR_3=1.0, SMVR_6=2.0),
        "help": "does not import JAX",
    }
    assert ratios(found) == {}


def test_a_slower_machine_is_no_slower_row():
    lines, slower = compare_section(section(2.0), section(6.0, kernel=1.5))
    assert lines == [f"1 rows compared; slower is {SLOWER:g} times what is kept"]
    assert not slower


@pytest.mark.parametrize(("factor", "slower"), [(0.99, False), (1.01, True)])
def test_a_row_is_slower_beyond_the_limit(factor, slower):
    lines, found = compare_section(section(2.0), section(2.0 * SLOWER * factor))
    assert found == slower
    told = f"slower: {ROW} is {4 * SLOWER * factor:.3g} and was 4, {SLOWER * factor:.2f} times"
    assert (told in lines) == slower


def test_on_another_processor_more_is_allowed_and_it_is_said():
    there = HERE | {"processor": "another"}
    lines, slower = compare_section(section(2.0), section(1.9 * SLOWER_ROUGHLY, machine=there))
    assert not slower
    assert lines[-1] == "kept elsewhere: processor was one"
    assert compare_section(section(2.0), section(2.1 * SLOWER_ROUGHLY, machine=there)).slower


@pytest.mark.parametrize("which", ["what is kept", "this"])
def test_on_a_busy_machine_more_is_allowed_and_it_is_said(which):
    shares = {"what is kept": 1.0, "this": 1.0} | {which: 0.99 / BUSY}
    kept = section(2.0, share=shares["what is kept"])
    lines, slower = compare_section(kept, section(1.9 * SLOWER_ROUGHLY, share=shares["this"]))
    assert not slower
    assert lines[-1] == f"{which} was measured on a busy machine"
    assert compare_section(kept, section(2.1 * SLOWER_ROUGHLY, share=shares["this"])).slower


def test_another_version_of_jax_is_said_and_changes_no_limit():
    newer = HERE | {"jax": "0.11"}
    lines, slower = compare_section(section(2.0), section(2.1 * SLOWER, machine=newer))
    assert slower
    assert lines[-1] == "kept elsewhere: jax was 0.10"


def test_a_faster_row_is_told_and_is_no_failure():
    lines, slower = compare({"a": 4.0}, {"a": 2.0}, 1.5)
    assert lines[1:] == ["faster: a is 2 and was 4, 0.50 times"]
    assert not slower


def test_the_worst_comes_first():
    lines, _ = compare({"a": 1.0, "b": 1.0, "c": 1.0}, {"a": 2.0, "b": 3.0, "c": 1.0}, 1.5)
    assert [line.split()[1] for line in lines[1:]] == ["b", "a"]


def test_rows_that_come_and_go_are_told():
    lines, slower = compare({"old": 1.0}, {"new": 1.0}, 1.5)
    assert lines[1:] == ["kept, but not measured any more: old", "not kept yet: new"]
    assert not slower


def test_another_rival_is_another_row():
    kept = {"machine": HERE, "s": costs(python_alone=1.0, nestax=2.0)}
    now = {"machine": HERE, "s": costs(import_jax=10.0, nestax=2.0)}
    lines, slower = compare_section(kept, now)
    assert lines[0].startswith("0 rows compared")
    assert not slower


def test_nothing_kept_is_nothing_slower():
    lines, slower = compare_section({}, section(2.0))
    assert lines[1:] == [f"not kept yet: {ROW}"]
    assert not slower
