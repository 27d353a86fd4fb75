"""One process per run: numbers the generations, writes the ledger and the events, answers the command line.

`decide.heard` is all of its judgement, a pure function; `server` is the shell around it.
"""
