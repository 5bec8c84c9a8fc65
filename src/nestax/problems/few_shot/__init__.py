"""Learning to learn from few examples: tasks, networks, chains of inner steps."""
