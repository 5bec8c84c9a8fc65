"""Estimators with ``fit``, as scikit-learn has them: NumPy in, NumPy out."""

try:
    import sklearn as _installed  # noqa: F401
except ImportError:
    raise ImportError("nx.sklearn needs scikit-learn: pip install 'nestax[sklearn]'.") from None

from nestax.sklearn.cox import CoxRegressor as CoxRegressor
from nestax.sklearn.portfolio import MeanDeviationPortfolio as MeanDeviationPortfolio
from nestax.sklearn.ranking import RankingClassifier as RankingClassifier
from nestax.sklearn.robust import RobustClassifier as RobustClassifier
from nestax.sklearn.robust import RobustRegressor as RobustRegressor
from nestax.sklearn.tilted import TiltedClassifier as TiltedClassifier
from nestax.sklearn.tilted import TiltedRegressor as TiltedRegressor
