"""A deterministic simulation of whole histories of a run, faults included, in milliseconds and from one seed.

The members and the coordinator's decisions are the production code; only time, the network, the processes and
the arithmetic are simulated. Gradients are symbols: a wrong order of sums, a stale parameter or a torn
transfer changes the symbol of the state, and the state must be that of the reference run.
"""
