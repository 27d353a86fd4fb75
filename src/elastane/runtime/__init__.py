"""Inside a worker: the only floor (with recipes) that imports torch."""
