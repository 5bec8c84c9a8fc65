"""Ready problems, one family a file."""

from nestax.problems.mean_deviation import mean_deviation as mean_deviation
