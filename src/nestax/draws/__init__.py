"""Where draws come from: populations, simulators, groups, and blocks of them."""
