"""Made-up chains whose optimum or whose growth is known."""
