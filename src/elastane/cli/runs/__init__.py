"""Commands for one run on this machine."""
