"""The experiments of the SMVR paper, run again on real data; ``nestax reproduce`` is their command."""

from nestax.paper.maml import FewShot as FewShot
from nestax.paper.maml import reproduce_maml as reproduce_maml
from nestax.paper.portfolio import Portfolios as Portfolios
from nestax.paper.portfolio import reproduce_portfolio as reproduce_portfolio
from nestax.paper.tilted import TiltedRuns as TiltedRuns
from nestax.paper.tilted import reproduce_term as reproduce_term
