"""``elastane checkpoint``: verbs about the checkpoints of a run."""
