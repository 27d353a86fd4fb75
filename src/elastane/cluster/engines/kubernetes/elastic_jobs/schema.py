"""Schemas of Kubernetes for the values of Elastane, so that each field is written down once. Pure."""

import types
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

import msgspec

MOST_ITEMS, MOST_CHARACTERS = 256, 4096
"""Limits of lists and texts: an API server refuses rules that may take it too long."""
_PLAIN: dict[object, dict[str, Any]] = {
    bool: {"type": "boolean"},
    int: {"type": "integer", "format": "int64"},
    float: {"type": "number"},
    str: {"type": "string", "maxLength": MOST_CHARACTERS},
}


def build_schema(kind: Any) -> dict[str, Any]:
    """Return the structural schema of a type of a spec; the only unions there are of numbers and words."""
    if kind in _PLAIN:
        return dict(_PLAIN[kind])
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        return _build_object(kind)
    origin, arguments = get_origin(kind), get_args(kind)
    if origin is Literal:
        return {"type": "string", "enum": list(arguments)}
    if origin in (Union, types.UnionType):
        some = [argument for argument in arguments if argument is not type(None)]
        return build_schema(some[0]) if len(some) == 1 else {"x-kubernetes-int-or-string": True}
    if origin in (tuple, list):
        return {"type": "array", "maxItems": MOST_ITEMS, "items": build_schema(arguments[0])}
    raise TypeError(f"{kind} has no schema")


def _build_object(kind: type[msgspec.Struct]) -> dict[str, Any]:
    hints = get_type_hints(kind)
    properties = {
        field.encode_name: build_schema(hints[field.name]) for field in msgspec.structs.fields(kind)
    }
    return {"type": "object", "properties": properties}
