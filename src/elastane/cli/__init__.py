"""The command line: one module per command, a thin shell around the packages below.

The commands in ``runs`` and ``checkpoints`` act on one run on this machine. Those in ``jobs`` and
``operators`` act on a cluster.
"""
