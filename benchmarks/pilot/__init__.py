"""The pilot: a small shared cluster, run with elastic jobs and with jobs of a fixed size."""
