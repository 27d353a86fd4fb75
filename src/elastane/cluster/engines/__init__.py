"""Engines start, stop and observe the agents of jobs; they make no decisions."""
