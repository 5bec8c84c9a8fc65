"""Ready problems, one family a file."""

from nestax.problems.convex_chain import convex_chain as convex_chain
from nestax.problems.mean_deviation import mean_deviation as mean_deviation
from nestax.problems.smooth_chain import smooth_chain as smooth_chain
