"""The papers behind the methods, as BibTeX, by key."""

import importlib.resources

_ENTRIES = importlib.resources.files("nestax.estimators").joinpath("bibliography.bib").read_text("utf-8")
BIBTEX = {entry.partition("{")[2].partition(",")[0]: entry for entry in _ENTRIES.strip().split("\n\n")}
