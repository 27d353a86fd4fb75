"""Visits to a run on other machines: its files are mirrored here while a command reads them."""
