"""Commands for users who submit jobs to a cluster."""
