"""Chains with one inner expectation per example."""
