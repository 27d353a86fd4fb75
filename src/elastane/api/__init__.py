"""The nouns: frozen values, no I/O, imported in milliseconds."""
