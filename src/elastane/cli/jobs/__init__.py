"""Verbs about the jobs of a cluster, for whoever submits them."""
