"""One published method, one file. A new method is one file and one line here."""

from nestax.estimators.accelerated_scgd import ASCGD as ASCGD
from nestax.estimators.accelerated_scgd import ASCPG as ASCPG
from nestax.estimators.adjoint_smvr import AdjointSMVR as AdjointSMVR
from nestax.estimators.block_smvr import BlockSMVR as BlockSMVR
from nestax.estimators.civr import CIVR as CIVR
from nestax.estimators.cover import COVER as COVER
from nestax.estimators.cover import RECOVER as RECOVER
from nestax.estimators.csaga import CSAGA as CSAGA
from nestax.estimators.exact import Exact as Exact
from nestax.estimators.msvr import MSVR as MSVR
from nestax.estimators.nasa import NASA as NASA
from nestax.estimators.nested_spider import NestedSPIDER as NestedSPIDER
from nestax.estimators.nlasg import MLNASA as MLNASA
from nestax.estimators.nlasg import NLASG as NLASG
from nestax.estimators.plain import Plain as Plain
from nestax.estimators.pmfs import PMFS as PMFS
from nestax.estimators.pmm import PMM as PMM
from nestax.estimators.product_smvr import PMVR as PMVR
from nestax.estimators.product_smvr import ProductSMVR as ProductSMVR
from nestax.estimators.sarahc import SARAHC as SARAHC
from nestax.estimators.scgd import SCGD as SCGD
from nestax.estimators.scsc import SCSC as SCSC
from nestax.estimators.self_tuning import SelfTuning as SelfTuning
from nestax.estimators.smvr import SMVR as SMVR
from nestax.estimators.snapshot_smvr import SnapshotSMVR as SnapshotSMVR
from nestax.estimators.sox import SOX as SOX
from nestax.estimators.spider import SARAH as SARAH
from nestax.estimators.spider import SPIDER as SPIDER
from nestax.estimators.spider import SpiderBoost as SpiderBoost
from nestax.estimators.ssd import SSD as SSD
from nestax.estimators.storm import STORM as STORM
from nestax.estimators.stormc import STORMC as STORMC
from nestax.estimators.tscgd import ATSCGD as ATSCGD
from nestax.estimators.tscgd import TSCGD as TSCGD
from nestax.estimators.vrscpg import VRSCPG as VRSCPG

__all__ = sorted(name for name in globals() if name[0].isupper())  # pyright: ignore[reportUnsupportedDunderAll]
