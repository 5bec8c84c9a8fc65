"""Evaluating policies."""
