"""Step rules that Optax does not have: those that need the feasible set, or know their length."""

from nestax.parts.step_rule import AbstractStep as AbstractStep
from nestax.steps.adagrad import AdaGrad as AdaGrad
from nestax.steps.adam import Adam as Adam
from nestax.steps.adam import AMSGrad as AMSGrad
from nestax.steps.adaptive import adabound_type as adabound_type
from nestax.steps.adaptive import adagrad_mean as adagrad_mean
from nestax.steps.adaptive import adam_type as adam_type
from nestax.steps.adaptive import amsgrad_type as amsgrad_type
from nestax.steps.averaged import Averaged as Averaged
from nestax.steps.bounded import Bounded as Bounded
from nestax.steps.descent import Descent as Descent
from nestax.steps.frank_wolfe import FrankWolfe as FrankWolfe
from nestax.steps.frank_wolfe import InnerFrankWolfe as InnerFrankWolfe
from nestax.steps.normalized import Normalized as Normalized
from nestax.steps.rmsprop import RMSprop as RMSprop
from nestax.steps.suggested import Suggested as Suggested
