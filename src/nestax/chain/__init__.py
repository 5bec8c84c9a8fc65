"""The chain F = f_K ∘ … ∘ f_1: its levels, their derivatives, and everything exact about it."""
