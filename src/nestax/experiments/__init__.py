"""The experiments of the SMVR paper, run again on real data; ``nestax reproduce`` is their command."""

from nestax.experiments.maml import FewShot as FewShot
from nestax.experiments.maml import reproduce_maml as reproduce_maml
from nestax.experiments.portfolio import Portfolios as Portfolios
from nestax.experiments.portfolio import reproduce_portfolio as reproduce_portfolio
from nestax.experiments.tilted import TiltedRuns as TiltedRuns
from nestax.experiments.tilted import reproduce_term as reproduce_term
