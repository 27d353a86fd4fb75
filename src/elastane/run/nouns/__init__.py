"""The nouns of a run: frozen values, no I/O, imported in milliseconds."""
