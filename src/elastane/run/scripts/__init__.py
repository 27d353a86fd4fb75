"""Unmodified scripts, under the contract of torchrun: each size of the run is a world of fresh processes.

`worlds` decides, `agent` acts, and `processes` is what each process of the script runs in.
"""
