"""Ready problems, one family a file."""

from nestax.problems.chains.convex_chain import convex_chain as convex_chain
from nestax.problems.chains.smooth_chain import smooth_chain as smooth_chain
from nestax.problems.coupled.average_precision import average_precision as average_precision
from nestax.problems.coupled.global_contrastive import global_contrastive as global_contrastive
from nestax.problems.few_shot import networks as networks
from nestax.problems.few_shot.maml import maml as maml
from nestax.problems.few_shot.tasks import Tasks as Tasks
from nestax.problems.portfolio.log_utility import log_utility as log_utility
from nestax.problems.portfolio.mean_cvar import mean_cvar as mean_cvar
from nestax.problems.portfolio.mean_deviation import mean_deviation as mean_deviation
from nestax.problems.portfolio.mean_semideviation import mean_semideviation as mean_semideviation
from nestax.problems.portfolio.mean_variance import mean_variance as mean_variance
from nestax.problems.tilted.hierarchical_term import groups_of as groups_of
from nestax.problems.tilted.hierarchical_term import hierarchical_term as hierarchical_term
from nestax.problems.tilted.term import term as term
from nestax.problems.tilted.tilting import with_tilts as with_tilts
