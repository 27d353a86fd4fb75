"""One run directory and its attempts, one after the other: begun, lived, gone on with and concluded.

What ``elastane run`` does before a terminal and `elastane.attempts` as a process of its own without one.
"""
