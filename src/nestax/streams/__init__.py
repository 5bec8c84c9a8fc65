"""Rows fed from the host while a run computes."""
