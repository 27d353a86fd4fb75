"""The protocol between workers: pure functions over frozen values, with equal results on every worker."""
