"""Connections to the coordinator of a run, and the files that lead to it."""
