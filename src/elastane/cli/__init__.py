"""The command line: thin shells around values from the floors below, one module per verb.

``runs`` and ``checkpoints`` are about one run on this machine, ``jobs`` and ``operators`` about a cluster.
"""
