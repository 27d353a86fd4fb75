"""The keys of tensors in a checkpoint."""

MODEL = "model."
"""The prefix of a parameter or buffer, before its name in the model."""
OPTIMIZER_STATE = "optimizer.state."
"""The prefix of a tensor of the optimizer, before the name of its parameter and of its entry."""
EXTRA = "extra."
"""The prefix of a tensor of the replicated state."""
