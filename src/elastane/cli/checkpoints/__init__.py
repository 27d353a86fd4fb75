"""``elastane checkpoint``: commands for the checkpoints of a run."""
