"""The scheduler: one pure function from a snapshot of the cluster to a plan with reasons."""
