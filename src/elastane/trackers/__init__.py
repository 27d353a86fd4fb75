"""Experiment trackers, which receive each metric of a run exactly once."""
