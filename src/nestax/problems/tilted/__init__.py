"""Tilted risks, of all rows together or within and across groups."""
