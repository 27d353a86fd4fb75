"""Experiment trackers, which receive each metric of a run exactly once.

One process beside the run (``python -m elastane.run.trackers``) follows the ledger and feeds every tracker.
How far a tracker is, its own store says, which is read again after every interruption; no second record of
that can be lost or be ahead. So a death between any two writes repeats nothing and leaves nothing out.
"""
