"""Checkpoints of a worker's state: writing them, reading them, and the files in between.

`torch.distributed.checkpoint` can read the files too.
"""
