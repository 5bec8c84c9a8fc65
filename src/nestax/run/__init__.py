"""From arguments to a finished run: ``minimize``, ``sweep``, ``solve_stages``, ``autotune``."""
