"""One run directory and its lives, one after the other: begun, lived, gone on with and concluded.

What ``elastane run`` does before a terminal and `elastane.lives` as a process of its own without one.
"""
