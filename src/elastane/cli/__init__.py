"""The command line: one module per verb, each a thin shell around values from the floors below."""
