"""The command line: one module per command, a thin shell around the packages below.

The commands in ``runs`` and ``checkpoints`` act on one run on this machine. Those in ``jobs`` and
``operators`` act on a cluster. Any function here may raise an `ElastaneError`
about the words that were typed; ``command`` prints it.
"""
