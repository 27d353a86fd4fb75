"""One run directory and its attempts, one after the other: started, run to their end, resumed, reported.

``elastane run`` does this in a terminal, `elastane.attempts` as a process without one.
"""
