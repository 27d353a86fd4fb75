"""The keys of tensors in a checkpoint."""

from elastane.run.worker.state.averaged_state import PREFIX

MODEL = "model."
"""The prefix of a parameter or buffer, before its name in the model."""
OPTIMIZER_STATE = "optimizer.state."
"""The prefix of a tensor of the optimizer, before the name of its parameter and of its entry."""
INNER_STATE = PREFIX + "."
"""The prefix of averaged state of an inner optimizer, which its name has already."""
EXTRA = "extra."
"""The prefix of a tensor of the replicated state."""


def build_value_key(name: str) -> str:
    """Return the key of a tensor with values: a parameter, a buffer, or averaged state."""
    return name if name.startswith(INNER_STATE) else MODEL + name
