"""Looking at problems and methods: checks, evaluations, comparisons, rates."""

from nestax.study.check import LevelCheck as LevelCheck
from nestax.study.check import Report as Report
from nestax.study.check import check as check
from nestax.study.compare import Comparison as Comparison
from nestax.study.compare import compare as compare
from nestax.study.complexity import Point as Point
from nestax.study.complexity import complexity as complexity
from nestax.study.evaluate import Interval as Interval
from nestax.study.evaluate import evaluate as evaluate
from nestax.study.rates import Rates as Rates
from nestax.study.rates import rates as rates
