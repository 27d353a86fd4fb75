"""The configuration of a ``transformers`` model, as its ``save_pretrained`` writes it.

This module does not import ``transformers``: a model of its classes has imported it already.
"""

import json
from typing import Any

import torch
from torch import nn

CONFIG, GENERATION = "config.json", "generation_config.json"


def is_of_transformers(model: nn.Module) -> bool:
    """Return whether ``from_pretrained`` can build this module; a wrapper of such a model does not count."""
    return any(
        kind.__name__ == "PreTrainedModel" and kind.__module__.startswith("transformers.")
        for kind in type(model).__mro__
    )


def read_configs(model: nn.Module) -> dict[str, bytes]:
    """Return ``config.json`` and ``generation_config.json``, if ``save_pretrained`` would write them."""
    if not is_of_transformers(model):
        return {}
    found: dict[str, bytes] = {}
    config = _read_json(getattr(model, "config", None))
    if config is None or "model_type" not in config:
        return {}
    # As save_pretrained does. The class to build and the type of its weights come from the model, not from
    # the configuration from which it was built.
    # `fully_shard` has put a class of torch before it.
    kinds = (kind for kind in type(model).__mro__ if not kind.__module__.startswith("torch."))
    config["architectures"] = [next(kinds).__name__]
    dtype = next((p.dtype for p in model.parameters() if p.is_floating_point()), torch.float32)
    config["torch_dtype" if "torch_dtype" in config else "dtype"] = str(dtype).removeprefix("torch.")
    found[CONFIG] = encode_config(config)
    generation = _read_json(getattr(model, "generation_config", None))
    if generation is not None:
        found[GENERATION] = encode_config(generation)
    return found


def replace_dtype(text: bytes, dtype: torch.dtype) -> bytes:
    """Return a ``config.json`` with another type of weights."""
    config = json.loads(text)
    config["torch_dtype" if "torch_dtype" in config else "dtype"] = str(dtype).removeprefix("torch.")
    return encode_config(config)


def encode_config(value: dict[str, Any]) -> bytes:
    """Encode a value as JSON; equal values give equal bytes."""
    return json.dumps(value, indent=2, sort_keys=True).encode() + b"\n"


def _read_json(config: object) -> dict[str, Any] | None:
    write = getattr(config, "to_json_string", None)
    if not callable(write):
        return None
    value = json.loads(write())
    return value if isinstance(value, dict) else None
