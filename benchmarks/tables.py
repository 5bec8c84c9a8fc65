"""What tables of the pages have in common."""

import numpy as np


def with_error(x: np.ndarray, signed: str = "", unit: float = 1.0) -> str:
    """The mean of some runs and its standard error; ``signed`` is "+" for differences."""
    if not np.isfinite(x).all():
        return "diverged"
    return f"{unit * x.mean():{signed}.2f} ± {unit * x.std(ddof=1) / len(x) ** 0.5:.2f}"
