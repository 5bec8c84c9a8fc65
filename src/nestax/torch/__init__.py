"""Trackers for losses in PyTorch. Imports no JAX; the mathematics is that of ``nx.track``."""

try:
    import torch as _installed  # noqa: F401
except ImportError:
    raise ImportError("nestax.torch needs PyTorch: pip install 'nestax[torch]'.") from None

from nestax.torch.losses import AveragePrecision as AveragePrecision
from nestax.torch.losses import Cox as Cox
from nestax.torch.losses import CVaRRobust as CVaRRobust
from nestax.torch.losses import DonskerVaradhan as DonskerVaradhan
from nestax.torch.losses import InfoNCE as InfoNCE
from nestax.torch.losses import KLRobust as KLRobust
from nestax.torch.losses import LogMeanExp as LogMeanExp
from nestax.torch.tracked import Tracked as Tracked
