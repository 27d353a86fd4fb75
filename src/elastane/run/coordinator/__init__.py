"""The coordinator, one process per run: it numbers generations, writes ledger and events, answers commands.

`decide.decide_actions`, a pure function, makes all decisions; `server` is the shell around it.
"""
