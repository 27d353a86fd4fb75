"""Which job gets how many devices: one pure function from a snapshot to a plan with reasons."""
