"""Every method with settings for the small problems, and what each law says about it."""

import functools
from collections.abc import Iterable
from typing import Any, NamedTuple

from tests.support.blocked import Blocked, blocked
from tests.support.cases import (
    Case,
    bent_two_levels,
    exact_middle,
    kth_row,
    mean_row,
    noisy,
    without_noise,
)

import nestax as nx
from nestax.estimators.registry import classes
from nestax.parts.estimator import AbstractEstimator

MODES = ("fresh", "lagged", "reuse")
RESTARTS = {"period": 5, "restart_batch": 7}
BLOCKS = 3
VISIT = 2


def storm_family(beta) -> dict[str, Any]:
    """Every estimator for any number of levels that tracks values by STORM and has no snapshot."""
    return (
        {"SMVR": nx.SMVR(beta)}
        | {f"AdjointSMVR {mode}": nx.AdjointSMVR(beta, mode) for mode in MODES}
        | {f"ProductSMVR {mode}": nx.ProductSMVR(beta, mode) for mode in MODES}
    )


def core_methods(beta=0.3) -> dict[str, Any]:
    """That family, its relative with snapshots, and the two without memory."""
    return storm_family(beta) | {
        "SnapshotSMVR": nx.SnapshotSMVR(beta, period=5),
        "Plain": nx.Plain(),
        "Exact": nx.Exact(),
    }


@functools.cache
def every_method(rate: float = 0.3) -> dict[str, AbstractEstimator]:
    """At least one instance of every method; the first word of its name is that of the class.

    rate: what a method forgets in a step, where a setting says so. Published forms average
    deterministic levels like any other.
    """
    return core_methods(rate) | {
        "ASCGD": nx.ASCGD(rate),
        "ASCPG": nx.ASCPG(rate),
        "ATSCGD": nx.ATSCGD(rate),
        "ATSCGD published": nx.ATSCGD(rate, exact_levels=False),
        "BlockSMVR": nx.BlockSMVR(min(rate, 0.9)),
        "CIVR": nx.CIVR(**RESTARTS),
        "COVER": nx.COVER(rate),
        "CSAGA": nx.CSAGA(),
        "MLNASA": nx.MLNASA(rate),
        "MLNASA published": nx.MLNASA(rate, exact_levels=False),
        "MSVR": nx.MSVR(min(rate, 0.5), rate),
        "NASA": nx.NASA(rate),
        "NestedSPIDER": nx.NestedSPIDER(**RESTARTS),
        "NLASG": nx.NLASG(rate),
        "NLASG published": nx.NLASG(rate, exact_levels=False),
        "PerBlock AdjointSMVR": nx.PerBlock(nx.AdjointSMVR(rate, "fresh")),
        "PerBlock SCSC": nx.PerBlock(nx.SCSC(rate)),
        "PerBlock SelfTuning": nx.PerBlock(nx.SelfTuning()),
        "PMFS": nx.PMFS(rate, period=5),
        "PMM": nx.PMM(rate),
        "PMM of means": nx.PMM(rate, per_draw=False),
        "PMM published": nx.PMM(rate, exact_levels=False),
        **{f"PMVR {mode}": nx.PMVR(rate, mode) for mode in MODES},
        "RECOVER": nx.RECOVER(rate, first_stage=4),
        "SARAH": nx.SARAH(period=5),
        "SARAHC": nx.SARAHC(**RESTARTS),
        "SCGD": nx.SCGD(rate),
        "SCSC": nx.SCSC(rate),
        "SCSC single-point": nx.SCSC(rate, "single-point"),
        "SelfTuning": nx.SelfTuning(),
        "SelfTuning fresh": nx.SelfTuning("fresh"),
        "SOX": nx.SOX(rate, rate),
        "SPIDER": nx.SPIDER(**RESTARTS),
        "SpiderBoost": nx.SpiderBoost(**RESTARTS),
        "SSD": nx.SSD(),
        "STORM": nx.STORM(),
        "STORMC": nx.STORMC(rate),
        "TSCGD": nx.TSCGD(rate),
        "TSCGD published": nx.TSCGD(rate, exact_levels=False),
        "VRSCPG": nx.VRSCPG(period=5),
    }


@functools.cache
def without_memory() -> dict[str, AbstractEstimator]:
    """The same with everything forgotten at every step, by a rate of one or a restart every step."""
    every_step = {"period": 1, "restart_batch": 7}
    return every_method(1.0) | {
        "CIVR": nx.CIVR(**every_step),
        "NestedSPIDER": nx.NestedSPIDER(**every_step),
        "RECOVER": nx.RECOVER(1.0, first_stage=100),
        "SARAH": nx.SARAH(period=1),
        "SARAHC": nx.SARAHC(**every_step),
        "SPIDER": nx.SPIDER(**every_step),
        "SpiderBoost": nx.SpiderBoost(**every_step),
        "STORM": nx.STORM(c=1e9),
        "VRSCPG": nx.VRSCPG(period=1),
    }


# The chain that a method is shown


def chain_of(method: AbstractEstimator) -> Case | Blocked:
    """A chain with noise of the kind that the method is made for."""
    return _chain(_kind(method))


def quiet_chain_of(method: AbstractEstimator) -> Case | Blocked:
    """The same without noise: equal rows in every level, and every block visited at every step."""
    return _quiet_chain(_kind(method))


def is_for_any_chain(method: AbstractEstimator) -> bool:
    """Whether it takes any number of levels, without blocks."""
    return method.about.levels is None and method.blocks != "table"


def _kind(method: AbstractEstimator) -> tuple:
    averages_exact = getattr(method, "exact_levels", True) is False
    return method.about.levels, method.about.outer_exact, method.blocks == "table", averages_exact


@functools.cache
def _chain(kind: tuple, visit: int = VISIT) -> Case | Blocked:
    levels, outer_exact, in_blocks, averages_exact = kind
    if in_blocks:
        name = "two_levels" if levels == 2 else "three_levels"
        return blocked(name, blocks=BLOCKS, visit=visit, ranges=False)
    if levels == 1:
        return noisy("one_level")
    if levels == 2:
        return bent_two_levels(outer_noisy=not outer_exact)
    return exact_middle() if averages_exact else noisy("three_levels")


@functools.cache
def _quiet_chain(kind: tuple) -> Case | Blocked:
    case = _chain(kind, visit=BLOCKS)
    # The range of the inner level holds what the mean of its rows gives, or what the first row gives.
    pick = mean_row if kind[0] == 2 or kind[2] else kth_row
    return case._replace(problem=without_noise(case.problem, pick))


# What the laws say


class Law(NamedTuple):
    """A law over methods.

    covers: what it says about an instance; None where it says the same about all.
    exceptions: why it does not apply: by instance, or by class for all instances that it does not cover.
    """

    covers: dict[str, Any]
    exceptions: dict[str, str]

    def left_out(self) -> set[str]:
        """The instances that exceptions are about."""
        others = set(every_method()) - set(self.covers)
        return {name for name in others if {name, name.split()[0]} & set(self.exceptions)}


def law(*covers: dict[str, Any], exceptions: dict[str, str] | None = None) -> Law:
    return Law({name: says for some in covers for name, says in some.items()}, exceptions or {})


def saying(what: Any, names: Iterable[str]) -> dict[str, Any]:
    return dict.fromkeys(names, what)


def about_all(exceptions: dict[str, str]) -> Law:
    """A law that says the same about every method that is no exception."""
    left_out = Law({}, exceptions).left_out()
    return Law(saying(None, [name for name in every_method() if name not in left_out]), exceptions)


def where(reason: str, wanted: Any) -> dict[str, str]:
    """The same reason for every class of the registry for which something is true."""
    return {name: reason for name, cls in classes().items() if wanted(cls)}


def modes(name: str) -> list[str]:
    return [f"{name} {mode}" for mode in MODES]


FAMILY = ["SMVR", *modes("AdjointSMVR"), *modes("ProductSMVR"), *modes("PMVR")]
PUBLISHED = [
    "ATSCGD published",
    "MLNASA published",
    "NLASG published",
    "PMM published",
    "TSCGD published",
]
PER_BLOCK = ["PerBlock AdjointSMVR", "PerBlock SCSC", "PerBlock SelfTuning"]
SELF_TUNING = ["SelfTuning", "SelfTuning fresh"]
TUNES_ITSELF = ["SelfTuning", "PerBlock SelfTuning"]
RESTARTING = ["CIVR", "NestedSPIDER", "SARAH", "SARAHC", "SPIDER", "SpiderBoost"]

ZERO_NOISE = law(
    saying("exact", FAMILY),
    saying("exact", ["SnapshotSMVR", "PMFS", "VRSCPG", *RESTARTING]),
    saying("exact", ["COVER", "RECOVER", "SCSC", "STORM", "STORMC", "Plain", "Exact"]),
    saying("exact", ["BlockSMVR", "MSVR", *PER_BLOCK, *SELF_TUNING]),
    saying("geometric", ["ASCGD", "ASCPG", "ATSCGD", "MLNASA", "NASA", "NLASG", "PMM", "PMM of means"]),
    saying("geometric", ["SCGD", "SCSC single-point", "SOX", "TSCGD", *PUBLISHED]),
    {"SSD": "quadratic", "CSAGA": "every row"},
)


class Form(NamedTuple):
    """What is left of a gradient without memory, J_1ᵀ⋯J_Kᵀ: where, and of which draws.

    points: "new" for the inputs of this step, "old" for those of the step before, "mixed" for new
        weights and an old value.
    draws: the pass whose draws the Jacobians are taken of.
    per_draw: whether the product is formed draw by draw.
    values: the inputs of the inner values, likewise; their draws are always called "value".
    follows: whether the inner values are just that, or have something added to them.
    """

    points: str = "new"
    draws: str = "value"
    per_draw: bool = False
    values: str = "new"
    follows: bool = True


NO_MEMORY = law(
    saying(Form(), ["SMVR", "AdjointSMVR reuse", "ProductSMVR reuse", "Plain", "COVER", "RECOVER"]),
    saying(Form(), ["SCGD", "ASCGD", "ASCPG", "SCSC", "SCSC single-point", "PerBlock SCSC", "STORM"]),
    saying(Form(), ["PMM of means", "VRSCPG", *RESTARTING]),
    saying(Form(draws="grad"), ["AdjointSMVR fresh", "ProductSMVR fresh", "PerBlock AdjointSMVR"]),
    saying(Form(draws="grad"), ["TSCGD", "TSCGD published", "ATSCGD", "ATSCGD published", "SOX"]),
    saying(Form(draws="jac"), ["STORMC"]),
    saying(Form(per_draw=True), ["PMM", "PMM published", "PMVR reuse"]),
    saying(Form(draws="grad", per_draw=True), ["PMVR fresh"]),
    saying(Form("old", per_draw=True), ["PMVR lagged"]),
    saying(Form("old"), ["AdjointSMVR lagged", "ProductSMVR lagged"]),
    saying(Form("old", values="old"), ["MLNASA", "MLNASA published"]),
    saying(Form("old", follows=False), ["NLASG", "NLASG published", "MSVR"]),
    saying(Form("mixed"), ["NASA"]),
    saying("SVRG", ["SnapshotSMVR", "PMFS"]),
    exceptions={
        "BlockSMVR": "its rate stays below one, where its correction of blocks that rest is infinite",
        "CSAGA": "remembers every row until it is drawn again, whatever the settings",
        "Exact": "sees the population at every step and has no setting",
        "SSD": "the weights of its averages are fixed by the step",
    }
    | saying("its gains follow from the draws, and no setting makes it forget", TUNES_ITSELF),
)

ONE_LEVEL = law(
    saying("SGD", ["Plain", "Exact", "SCSC", "SCSC single-point", "BlockSMVR"]),
    saying("SGD", ["SelfTuning fresh"]),
    saying("SGD", ["TSCGD", "TSCGD published", "ATSCGD", "ATSCGD published"]),
    saying("STORM", [name for name in FAMILY if not name.endswith("lagged")]),
    saying("STORM, a step late", [name for name in FAMILY if name.endswith("lagged")]),
    saying("average", ["PMM", "PMM of means", "PMM published"]),
    saying("average, a step late", ["MLNASA", "MLNASA published", "NLASG", "NLASG published"]),
    saying("SPIDER", ["NestedSPIDER"]),
    saying("STORM with snapshots", ["SnapshotSMVR", "PMFS"]),
    saying("acceleration", ["SSD"]),
    exceptions=where("is a method for one level itself", lambda cls: cls.about.levels == 1)
    | where("is made for two levels", lambda cls: cls.about.levels == 2)
    | {
        "PerBlock": "is the method inside, block by block; see what is said about one block",
        "SelfTuning": "STORM with two gains of its own: written out in estimators/test_self_tuning.py",
    },
)

DETERMINISTIC = law(
    saying((0, 2), FAMILY),
    saying((0, 2), ["NestedSPIDER", "SnapshotSMVR", "PMFS", "SCSC", "SSD", "Plain", "Exact"]),
    saying((0, 2), [*PER_BLOCK, *SELF_TUNING]),
    saying((0,), PUBLISHED),
    saying((1, 2), ["BlockSMVR"]),
    saying((0,), ["SCGD", "ASCGD", "ASCPG", "NASA", "SARAHC", "STORMC", "VRSCPG", "SOX"]),
    saying((1,), ["MSVR"]),
    exceptions=where("a chain of one level must draw", lambda cls: cls.about.levels == 1)
    | where("its outer level is deterministic, so the inner must draw", lambda c: c.about.outer_exact)
    | saying(
        "evaluates deterministic levels exactly instead of averaging them; its published form does not",
        ["ATSCGD", "MLNASA", "NLASG", "PMM", "TSCGD"],
    )
    | {"SCSC single-point": "a linearised value is exact on affine levels only"},
)

ONE_BLOCK = law(
    {
        "Plain": "Plain",
        "PerBlock AdjointSMVR": "AdjointSMVR fresh",
        "PerBlock SCSC": "SCSC",
        "PerBlock SelfTuning": "SelfTuning",
        "SOX": "TSCGD",
        "MSVR": "ProductSMVR lagged",
        "BlockSMVR": "AdjointSMVR fresh",
    },
    exceptions=where("knows no blocks, and is wrapped by PerBlock", lambda cls: cls.blocks is None),
)

TYPES = about_all({})
FLOAT32 = about_all({})
PAIRING = about_all({})
PERMUTATION = about_all({})

LAWS = {
    "zero noise": ZERO_NOISE,
    "no memory": NO_MEMORY,
    "one level": ONE_LEVEL,
    "deterministic level": DETERMINISTIC,
    "one block": ONE_BLOCK,
    "types": TYPES,
    "float32": FLOAT32,
    "pairing": PAIRING,
    "permutation": PERMUTATION,
}


def unsaid(one: Law) -> set[str]:
    """Instances that a law neither covers nor leaves out."""
    return set(every_method()) - set(one.covers) - one.left_out()
