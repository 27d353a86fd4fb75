"""Decisions about a run under the contract of torchrun: its worlds of processes, one after the other."""
