"""The command line: what can be typed stands in ``surface``, what it does in a file per command."""

from nestax.cli.surface import app as app
from nestax.cli.surface import main as main
