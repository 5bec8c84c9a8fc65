"""Ready problems, one family a file."""

from nestax.problems.average_precision import average_precision as average_precision
from nestax.problems.convex_chain import convex_chain as convex_chain
from nestax.problems.global_contrastive import global_contrastive as global_contrastive
from nestax.problems.hierarchical_term import groups_of as groups_of
from nestax.problems.hierarchical_term import hierarchical_term as hierarchical_term
from nestax.problems.log_utility import log_utility as log_utility
from nestax.problems.maml import maml as maml
from nestax.problems.mean_cvar import mean_cvar as mean_cvar
from nestax.problems.mean_deviation import mean_deviation as mean_deviation
from nestax.problems.mean_semideviation import mean_semideviation as mean_semideviation
from nestax.problems.mean_variance import mean_variance as mean_variance
from nestax.problems.smooth_chain import smooth_chain as smooth_chain
from nestax.problems.term import term as term
from nestax.tilting import with_tilts as with_tilts
