"""What methods are made of: the contract of an estimator and of a step rule, and their tools."""
