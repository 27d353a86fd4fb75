"""The batches of virtual ranks, loaded by position or from streams."""
