"""Commands for users of a cluster: jobs."""
