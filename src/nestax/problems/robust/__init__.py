"""Losses under the worst distribution near that of the rows."""
