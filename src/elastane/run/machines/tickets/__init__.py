"""Tickets: what another machine needs to find a run and to be let in."""
