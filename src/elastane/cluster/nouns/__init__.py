"""The nouns of a cluster: frozen values, no I/O, imported in milliseconds."""
