"""The encoding of state as JSON and tensors, and its decoding to the original types, without pickle."""

import hashlib
import json
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType
from typing import Any, Protocol, runtime_checkable

import torch

TENSOR = "elastane.tensor"
"""The JSON key of a reference to a tensor, by its name among the tensors beside the JSON."""

ITEMS = "elastane.items"
"""The JSON key of a dict that has keys other than strings, as a list of its items."""

PLAIN = frozenset({str, int, float, bool, type(None)})
"""The types of values that JSON has."""


@runtime_checkable
class Stateful(Protocol):
    """An object with a state dict, such as a scheduler, scaler, module or optimizer."""

    def state_dict(self) -> dict[str, Any]: ...
    def load_state_dict(self, state_dict: dict[str, Any], /) -> object: ...


def to_json(value: object) -> Any:
    """Return the value as lists, dicts, strings, numbers and None.

    Tensors of one element become numbers. Functions become None: every worker has them from the script.

    Raises:
        TypeError: it contains a value of another type.
    """
    return json.loads(to_json_text(value))


def to_json_text(value: object) -> str:
    """Return the value as JSON text; equal values give equal text."""
    return json.dumps(value, default=_convert, sort_keys=True)


def digest_text(content: str) -> str:
    """Return the first 8 bytes of the SHA-256 of a text, in hexadecimal."""
    return hashlib.sha256(content.encode()).hexdigest()[:16]


def _convert(value: object) -> Any:
    if isinstance(value, torch.Tensor) and value.numel() == 1:
        return value.item()
    if isinstance(value, MappingProxyType):
        return dict(value)
    if callable(value):
        return None
    raise TypeError(f"{type(value).__name__} {value!r}")


def split_tensors(value: object, name: str, tensors: dict[str, torch.Tensor]) -> Any:
    """Describe a value as JSON, with a reference in place of each tensor.

    Args:
        value: nested dicts, lists and tuples of tensors and of values for `to_json`.
        name: the name of the value, and the prefix of its tensors' names.
        tensors: receives the tensors, by name.

    Raises:
        TypeError: it contains a value of another type.
    """
    if type(value) in PLAIN:
        return value
    if isinstance(value, torch.Tensor):
        tensors[name] = value.detach()
        return {TENSOR: name, "shape": list(value.shape), "dtype": str(value.dtype)}
    if isinstance(value, Mapping):
        if all(isinstance(key, str) for key in value):
            return {key: split_tensors(entry, f"{name}.{key}", tensors) for key, entry in value.items()}
        items = [
            [to_json(key), split_tensors(entry, f"{name}.{key}", tensors)] for key, entry in value.items()
        ]
        return {ITEMS: items}
    if isinstance(value, list | tuple):
        if all(type(entry) in PLAIN for entry in value):
            return list(value)
        return [split_tensors(entry, f"{name}.{index}", tensors) for index, entry in enumerate(value)]
    return to_json(value)


def join_tensors(described: Any, tensors: Mapping[str, torch.Tensor]) -> Any:
    """Return the value that `split_tensors` described, with lists in place of tuples."""
    if isinstance(described, dict):
        if TENSOR in described:
            return tensors[described[TENSOR]]
        if ITEMS in described:
            pairs = ((_restore_key(key), join_tensors(entry, tensors)) for key, entry in described[ITEMS])
            return dict(pairs)
        return {key: join_tensors(entry, tensors) for key, entry in described.items()}
    if isinstance(described, list):
        return [join_tensors(entry, tensors) for entry in described]
    return described


def _restore_key(encoded: Any) -> Any:
    return tuple(map(_restore_key, encoded)) if isinstance(encoded, list) else encoded


def restore_types(example: object, encoded: Any) -> Any:
    """Return a decoded value, converted to the types of this process's own value.

    JSON has no tuples, no keys that are numbers and no functions; ``example`` shows where they belong
    (``betas``, the milestones of ``MultiStepLR``, the phases of ``SWALR``).
    """
    if encoded is None and callable(example):
        return example
    if isinstance(example, Mapping) and isinstance(encoded, Mapping):
        to_key = _choose_key_type(example)
        entries = {
            to_key(key): restore_types(example.get(to_key(key)), entry) for key, entry in encoded.items()
        }
        # Missing keys of a Counter count as zero, so it must stay a Counter.
        return Counter(entries) if isinstance(example, Counter) else entries
    if isinstance(example, list | tuple) and isinstance(encoded, list):
        examples: Iterable[object] = example if len(example) == len(encoded) else [None] * len(encoded)
        restored = [restore_types(part, entry) for part, entry in zip(examples, encoded, strict=True)]
        return tuple(restored) if isinstance(example, tuple) else restored
    return encoded


def _choose_key_type(example: Mapping[Any, object]) -> Callable[[Any], Any]:
    numbers = bool(example) and all(isinstance(key, int) for key in example)
    return int if numbers else lambda key: key
