"""Interfaces of other elastic frameworks, so that their scripts move by changing an import."""
