"""The configuration of a model of ``transformers``, as its own ``save_pretrained`` writes it.

``transformers`` is not imported: whatever says what its models say is one of them.
"""

import json
from typing import Any

import torch
from torch import nn

CONFIG, GENERATION = "config.json", "generation_config.json"


def configs_of(model: nn.Module) -> dict[str, bytes]:
    """``config.json`` and ``generation_config.json``; those the model has."""
    found: dict[str, bytes] = {}
    config = _said_by(getattr(model, "config", None))
    if config is None or "model_type" not in config:
        return {}
    # As save_pretrained does: the class to build and the type of its weights belong to the model, not to the
    # configuration it was made from.
    config["architectures"] = [type(model).__name__]
    dtype = next((p.dtype for p in model.parameters() if p.is_floating_point()), torch.float32)
    config["torch_dtype" if "torch_dtype" in config else "dtype"] = str(dtype).removeprefix("torch.")
    found[CONFIG] = _json(config)
    generation = _said_by(getattr(model, "generation_config", None))
    if generation is not None:
        found[GENERATION] = _json(generation)
    return found


def with_dtype(text: bytes, dtype: torch.dtype) -> bytes:
    """A ``config.json`` whose weights have been converted."""
    config = json.loads(text)
    config["torch_dtype" if "torch_dtype" in config else "dtype"] = str(dtype).removeprefix("torch.")
    return _json(config)


def _said_by(config: object) -> dict[str, Any] | None:
    say = getattr(config, "to_json_string", None)
    if not callable(say):
        return None
    said = json.loads(say())
    return said if isinstance(said, dict) else None


def _json(value: dict[str, Any]) -> bytes:
    return json.dumps(value, indent=2, sort_keys=True).encode() + b"\n"
