"""The experiments of the SMVR paper, and measurements of rates, run from a checkout: see README.md."""
