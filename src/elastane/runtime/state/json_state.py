"""State as JSON and tensors, and back into the types it had: nothing that travels is ever unpickled."""

import hashlib
import json
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType
from typing import Any, Protocol, runtime_checkable

import torch

TENSOR = "elastane.tensor"
"""The key of what stands in JSON for a tensor: its name among the tensors that travel beside."""

ITEMS = "elastane.items"
"""The key of what stands in JSON for a dict whose keys are not all strings: its items in order."""


@runtime_checkable
class Stateful(Protocol):
    """Whatever can say its state and take it again, as schedulers, scalers, modules and optimizers do."""

    def state_dict(self) -> dict[str, Any]: ...
    def load_state_dict(self, state_dict: dict[str, Any], /) -> object: ...


def to_json(value: object) -> Any:  # noqa: ANN401 - JSON has no narrower type
    """The value in lists, dicts, strings, numbers and None.

    One-element tensors become numbers; functions, which are the script's own and equal everywhere, None.

    Raises:
        TypeError: something in it is neither.
    """
    return json.loads(to_json_text(value))


def to_json_text(value: object) -> str:
    """What `to_json` says, as JSON in which equal values are equal text."""
    return json.dumps(value, default=_convert, sort_keys=True)


def digest_text(words: str) -> str:
    """The first 8 bytes of the SHA-256 of a text, in hexadecimal."""
    return hashlib.sha256(words.encode()).hexdigest()[:16]


def _convert(value: object) -> Any:  # noqa: ANN401 - likewise
    if isinstance(value, torch.Tensor) and value.numel() == 1:
        return value.item()
    if isinstance(value, MappingProxyType):
        return dict(value)
    if callable(value):
        return None
    raise TypeError(f"{type(value).__name__} {value!r}")


def split_tensors(value: object, name: str, tensors: dict[str, torch.Tensor]) -> Any:  # noqa: ANN401 - likewise
    """Describe a value as JSON, with a reference in place of each tensor.

    Args:
        value: nested dicts, lists and tuples of tensors and of what `to_json` can say.
        name: of the value, which the names of its tensors begin with.
        tensors: takes the tensors by name.

    Raises:
        TypeError: something in it is neither.
    """
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
        return [split_tensors(entry, f"{name}.{place}", tensors) for place, entry in enumerate(value)]
    return to_json(value)


def join_tensors(described: Any, tensors: Mapping[str, torch.Tensor]) -> Any:  # noqa: ANN401 - likewise
    """The value that `split_tensors` has described, with lists in place of tuples."""
    if isinstance(described, dict):
        if TENSOR in described:
            return tensors[described[TENSOR]]
        if ITEMS in described:
            pairs = ((_key(key), join_tensors(entry, tensors)) for key, entry in described[ITEMS])
            return dict(pairs)
        return {key: join_tensors(entry, tensors) for key, entry in described.items()}
    if isinstance(described, list):
        return [join_tensors(entry, tensors) for entry in described]
    return described


def _key(encoded: Any) -> Any:  # noqa: ANN401 - likewise
    return tuple(map(_key, encoded)) if isinstance(encoded, list) else encoded


def restore_types(mine: object, encoded: Any) -> Any:  # noqa: ANN401 - likewise
    """What was said, in the types that the same place holds in this process.

    JSON has no tuples, no keys that are numbers and no functions; ``mine`` knows where there are some
    (``betas``, the milestones of ``MultiStepLR``, the phases of ``SWALR``).
    """
    if encoded is None and callable(mine):
        return mine
    if isinstance(mine, Mapping) and isinstance(encoded, Mapping):
        named = _names(mine)
        entries = {named(key): restore_types(mine.get(named(key)), entry) for key, entry in encoded.items()}
        # What a Counter does not hold counts as zero, so it must remain one.
        return Counter(entries) if isinstance(mine, Counter) else entries
    if isinstance(mine, list | tuple) and isinstance(encoded, list):
        known: Iterable[object] = mine if len(mine) == len(encoded) else [None] * len(encoded)
        listed = [restore_types(one, entry) for one, entry in zip(known, encoded, strict=True)]
        return tuple(listed) if isinstance(mine, tuple) else listed
    return encoded


def _names(mine: Mapping[Any, object]) -> Callable[[Any], Any]:
    numbers = bool(mine) and all(isinstance(key, int) for key in mine)
    return int if numbers else lambda key: key
