"""Ready problems, one family a file."""

from typing import Any

from nestax.moved import NAMES, moved_name
from nestax.problems.chains.convex_chain import convex_chain as convex_chain
from nestax.problems.chains.sloped_chain import sloped_chain as sloped_chain
from nestax.problems.chains.smooth_chain import smooth_chain as smooth_chain
from nestax.problems.chains.zero_chain import zero_chain as zero_chain
from nestax.problems.coupled.average_precision import average_precision as average_precision
from nestax.problems.coupled.contrastive import contrastive as contrastive
from nestax.problems.coupled.ndcg import ndcg as ndcg
from nestax.problems.coupled.partial_auc import partial_auc as partial_auc
from nestax.problems.few_shot import networks as networks
from nestax.problems.few_shot.maml import maml as maml
from nestax.problems.few_shot.tasks import Tasks as Tasks
from nestax.problems.nested.information_gain import information_gain as information_gain
from nestax.problems.nested.log_marginal import log_marginal as log_marginal
from nestax.problems.policy.bellman import bellman as bellman
from nestax.problems.portfolio.exact import ExactPortfolio as ExactPortfolio
from nestax.problems.portfolio.log_utility import log_utility as log_utility
from nestax.problems.portfolio.mean_cvar import mean_cvar as mean_cvar
from nestax.problems.portfolio.mean_deviation import exact_portfolio as exact_portfolio
from nestax.problems.portfolio.mean_deviation import mean_deviation as mean_deviation
from nestax.problems.portfolio.mean_semideviation import mean_semideviation as mean_semideviation
from nestax.problems.portfolio.mean_variance import mean_variance as mean_variance
from nestax.problems.robust.divergences import KL as KL
from nestax.problems.robust.divergences import ChiSquare as ChiSquare
from nestax.problems.robust.divergences import CVaR as CVaR
from nestax.problems.robust.dro import dro as dro
from nestax.problems.survival.cox import cox as cox
from nestax.problems.survival.cox import exact_cox as exact_cox
from nestax.problems.tilted.hierarchical_term import groups_of as groups_of
from nestax.problems.tilted.hierarchical_term import hierarchical_term as hierarchical_term
from nestax.problems.tilted.term import term as term
from nestax.problems.tilted.tilting import with_tilts as with_tilts


def __getattr__(name: str) -> Any:
    if f"problems.{name}" in NAMES:
        return moved_name(f"problems.{name}")
    raise AttributeError(f"module 'nestax.problems' has no attribute {name!r}")
