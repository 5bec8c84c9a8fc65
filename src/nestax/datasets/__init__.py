"""Data to try things on."""

from nestax.datasets.synthetic import synthetic_returns as synthetic_returns
