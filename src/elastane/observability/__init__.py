"""What a run has written down: read, proved, compared and drawn. Nothing here talks to a live process."""
