"""Losses with a mean inside, for a batch and a memory: ``value, state = loss(..., state)``.

``nestax.torch`` has the same losses as modules.
"""

from nestax.losses.cox import RiskSets, cox, risk_sets
from nestax.losses.means import (
    average_precision,
    cvar_robust,
    donsker_varadhan,
    info_nce,
    kl_robust,
    log_mean_exp,
)

__all__ = [
    "RiskSets",
    "average_precision",
    "cox",
    "cvar_robust",
    "donsker_varadhan",
    "info_nce",
    "kl_robust",
    "log_mean_exp",
    "risk_sets",
]
