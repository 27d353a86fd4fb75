"""Verbs about the cluster itself, for whoever looks after it."""
