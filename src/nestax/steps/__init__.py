"""Step rules that Optax does not have: those that need the feasible set, or know their length."""

from nestax.step import AbstractStep as AbstractStep
from nestax.steps.averaged import Averaged as Averaged
from nestax.steps.bounded import Bounded as Bounded
from nestax.steps.descent import Descent as Descent
from nestax.steps.frank_wolfe import FrankWolfe as FrankWolfe
from nestax.steps.frank_wolfe import InnerFrankWolfe as InnerFrankWolfe
from nestax.steps.normalized import Normalized as Normalized
from nestax.steps.suggested import Suggested as Suggested
