"""Constants and schedules of the theorems, and what can be observed of them."""

from nestax.theory.constants import LevelConstants as LevelConstants
from nestax.theory.constants import ObservedConstants as ObservedConstants
from nestax.theory.constants import estimate_constants as estimate_constants
from nestax.theory.regularise import regularised as regularised
from nestax.theory.theorems import L_3 as L_3
from nestax.theory.theorems import Budget as Budget
from nestax.theory.theorems import Constants as Constants
from nestax.theory.theorems import ConstantSchedule as ConstantSchedule
from nestax.theory.theorems import Schedules as Schedules
from nestax.theory.theorems import Stage as Stage
from nestax.theory.theorems import adaptive as adaptive
from nestax.theory.theorems import constant_schedule as constant_schedule
from nestax.theory.theorems import halving as halving
from nestax.theory.theorems import lemma_222 as lemma_222
from nestax.theory.theorems import samples_needed as samples_needed
from nestax.theory.theorems import theorem_1 as theorem_1
from nestax.theory.theorems import theorem_1_bound as theorem_1_bound
from nestax.theory.theorems import theorem_3 as theorem_3
