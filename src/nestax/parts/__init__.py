"""What methods are made of: everything that a method or a step rule of one's own needs.

The contract is ``AbstractEstimator`` (two pure functions and what they declare) and ``AbstractStep``;
``nx.testing.check_method`` says whether a class keeps it. The rest are the parts that the library's own
methods are built from.
"""

from nestax.chain.jacobian import Jacobian as Jacobian
from nestax.chain.jacobian import pull_through as pull_through
from nestax.errors import BELOW_ONE as BELOW_ONE
from nestax.errors import NONNEGATIVE as NONNEGATIVE
from nestax.errors import POSITIVE as POSITIVE
from nestax.errors import UNIT as UNIT
from nestax.errors import UP_TO_HALF as UP_TO_HALF
from nestax.errors import Range as Range
from nestax.parts.balls import Ball as Ball
from nestax.parts.balls import RunningRadius as RunningRadius
from nestax.parts.balls import into_ball as into_ball
from nestax.parts.estimator import About as About
from nestax.parts.estimator import AbstractEstimator as AbstractEstimator
from nestax.parts.estimator import Batches as Batches
from nestax.parts.estimator import Calls as Calls
from nestax.parts.estimator import Estimate as Estimate
from nestax.parts.estimator import Trackers as Trackers
from nestax.parts.estimator import draw_batches as draw_batches
from nestax.parts.plug_in import linearise as linearise
from nestax.parts.plug_in import plug_in as plug_in
from nestax.parts.plug_in import value_and_gradient as value_and_gradient
from nestax.parts.restarts import Restarting as Restarting
from nestax.parts.restarts import Snapshots as Snapshots
from nestax.parts.settings import Decay as Decay
from nestax.parts.settings import Number as Number
from nestax.parts.settings import Schedule as Schedule
from nestax.parts.settings import Setting as Setting
from nestax.parts.settings import at as at
from nestax.parts.settings import choice as choice
from nestax.parts.settings import count as count
from nestax.parts.settings import per_level as per_level
from nestax.parts.settings import scaled as scaled
from nestax.parts.settings import setting as setting
from nestax.parts.step_rule import AbstractStep as AbstractStep
from nestax.parts.step_rule import Method as Method
from nestax.parts.tables import fill_table as fill_table
from nestax.parts.tables import visit_table as visit_table
from nestax.parts.tracking import average as average
from nestax.parts.tracking import storm as storm
from nestax.parts.tracking import storm_of_blocks as storm_of_blocks
