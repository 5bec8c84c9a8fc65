"""Portfolios of assets: risk measures of their returns."""
