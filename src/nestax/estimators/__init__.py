"""One published method, one file. A new method is one file and one line here."""

from nestax.estimators.adjoint_smvr import AdjointSMVR as AdjointSMVR
from nestax.estimators.exact import Exact as Exact
from nestax.estimators.plain import Plain as Plain
from nestax.estimators.product_smvr import ProductSMVR as ProductSMVR
from nestax.estimators.smvr import SMVR as SMVR
from nestax.estimators.snapshot_smvr import SnapshotSMVR as SnapshotSMVR
