"""The attempts of a run, one after the other in its directory: start, supervision, resumption, results.

``elastane run`` uses this package in a terminal; the program `elastane.run.attempts` needs no terminal.
"""
