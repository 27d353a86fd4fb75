"""Verbs about one run on this machine."""
