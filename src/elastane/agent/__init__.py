"""Beside the workers: starts and watches processes, and decides nothing about the training."""
