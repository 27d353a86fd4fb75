"""Nested tuples, lists and dicts of tensors as tensors by name, and back."""

from collections.abc import Iterable, Mapping
from typing import Any

import torch

SEPARATOR = "/"
"""A name has a part for each level: that of the whole, then for example "t0" for item 0 of a tuple."""


def flatten_tensors(name: str, value: Any) -> dict[str, torch.Tensor]:
    """Return the tensors in a value by name; None has none.

    Args:
        name: of the whole.
        value: a tensor, or nested tuples, lists and dicts of tensors.

    Raises:
        TypeError: the value has something else in it.
    """
    if value is None:
        return {}
    if isinstance(value, torch.Tensor):
        return {name: value}
    flat: dict[str, torch.Tensor] = {}
    for part, item in _list_items(value):
        if item is None:
            raise TypeError("a nested None has no tensor")
        flat |= flatten_tensors(f"{name}{SEPARATOR}{part}", item)
    return flat


def _list_items(value: Any) -> Iterable[tuple[str, Any]]:
    if type(value) in {tuple, list} and value:
        kind = "t" if type(value) is tuple else "l"
        return [(f"{kind}{place}", item) for place, item in enumerate(value)]
    if type(value) is dict and value and all(isinstance(key, str) and SEPARATOR not in key for key in value):
        return [(f"k{key}", item) for key, item in value.items()]
    raise TypeError(f"a {type(value).__name__} is neither a tuple nor a list nor a dict of tensors")


def nest_tensors(name: str, flat: Mapping[str, torch.Tensor]) -> Any:
    """Return the value that `flatten_tensors` has taken apart."""
    if name in flat:
        return flat[name]
    beneath = f"{name}{SEPARATOR}"
    below = [key.removeprefix(beneath) for key in flat if key.startswith(beneath)]
    parts = list(dict.fromkeys(key.partition(SEPARATOR)[0] for key in below))
    if not parts:
        return None
    items = {part: nest_tensors(beneath + part, flat) for part in parts}
    kind = parts[0][0]
    if kind == "k":
        return {part[1:]: item for part, item in items.items()}
    ordered = [items[f"{kind}{place}"] for place in range(len(items))]
    return ordered if kind == "l" else tuple(ordered)
