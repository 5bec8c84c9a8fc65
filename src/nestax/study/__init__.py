"""Looking at problems and methods: checks, evaluations, comparisons."""

from nestax.study.check import LevelCheck as LevelCheck
from nestax.study.check import Report as Report
from nestax.study.check import check as check
from nestax.study.compare import Comparison as Comparison
from nestax.study.compare import compare as compare
from nestax.study.evaluate import Interval as Interval
from nestax.study.evaluate import evaluate as evaluate
