"""How other terminals reach a live run, and a cluster."""
