"""Chains with an inner expectation that is simulated for every outer draw."""
