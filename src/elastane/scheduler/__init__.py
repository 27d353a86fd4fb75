"""Who gets how many devices: one pure function from a snapshot of the cluster to a plan with reasons."""
