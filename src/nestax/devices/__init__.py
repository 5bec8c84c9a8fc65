"""Many devices and many processes, on JAX's own engine: what lies where, and who decides."""
