"""The loop that is a run: one step, many lanes of it, compiled, recorded and paid for."""
