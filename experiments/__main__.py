"""``python -m experiments``."""

from experiments.commands import app

app()
