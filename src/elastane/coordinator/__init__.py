"""One process per run: numbers the generations, writes the ledger and the events, answers the command line.

`decide.decide_actions`, a pure function, makes all decisions; `server` is the shell around it.
"""
