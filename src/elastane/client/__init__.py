"""How other terminals reach a live run."""
