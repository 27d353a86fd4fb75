"""The finished model of a run, in formats that other programs can read."""
