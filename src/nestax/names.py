"""Every public name of ``nestax`` itself, and where it lives; ``nestax/__init__`` hands them out."""

import nestax.datasets as datasets
import nestax.equinox as equinox
import nestax.linear_oracles as linear_oracles
import nestax.losses as losses
import nestax.parts as parts
import nestax.problems as problems
import nestax.projections as projections
import nestax.report as report
import nestax.steps as steps
import nestax.stop as stop
import nestax.study as study
import nestax.testing as testing
import nestax.theory as theory
from nestax.chain.level import Level as Level
from nestax.chain.problem import Problem as Problem
from nestax.chain.prox import Prox as Prox
from nestax.checkpoints.asked import Checkpoint as Checkpoint
from nestax.compiling import speed_up as speed_up
from nestax.devices.asked import Devices as Devices
from nestax.draws.blocks import Blocks as Blocks
from nestax.draws.conditional import Conditional as Conditional
from nestax.draws.rows import Batch as Batch
from nestax.draws.source import Groups as Groups
from nestax.draws.source import Population as Population
from nestax.draws.source import Sampler as Sampler
from nestax.errors import ConvergenceWarning as ConvergenceWarning
from nestax.errors import ProblemError as ProblemError
from nestax.errors import SettingError as SettingError
from nestax.estimators import *
from nestax.estimators.multilevel import Multilevel as Multilevel
from nestax.estimators.per_block import PerBlock as PerBlock
from nestax.estimators.registry import cite as cite
from nestax.estimators.registry import methods as methods
from nestax.loop.columns import COLUMNS as COLUMNS
from nestax.loop.status import Status as Status
from nestax.parts.estimator import AbstractEstimator as AbstractEstimator
from nestax.parts.estimator import Estimate as Estimate
from nestax.parts.estimator import draw_batches as draw_batches
from nestax.parts.step_rule import Method as Method
from nestax.parts.track import TrackState as TrackState
from nestax.parts.track import track as track
from nestax.parts.track import track_init as track_init
from nestax.run.minimize import minimize as minimize
from nestax.run.record import Record as Record
from nestax.run.result import Continuation as Continuation
from nestax.run.result import Result as Result
from nestax.run.result import load as load
from nestax.run.stages import solve_stages as solve_stages
from nestax.run.sweep import Sweep as Sweep
from nestax.run.sweep import grid as grid
from nestax.run.sweep import sweep as sweep
from nestax.run.tune import autotune as autotune
from nestax.streams.stream import Stream as Stream
from nestax.study.check import check as check
from nestax.study.compare import Comparison as Comparison
from nestax.study.compare import compare as compare
from nestax.study.evaluate import evaluate as evaluate
