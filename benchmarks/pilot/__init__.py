"""A small shared cluster, lived through twice: with jobs that stretch, and with jobs of a fixed size."""
