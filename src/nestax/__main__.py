"""``python -m nestax`` is the command ``nestax``."""

from nestax.cli import main

main()
