"""Plain Python data: its bytes, to compare it, and its description, to carry it without pickle.

Plain are numbers, texts, None, tensors, arrays, and lists, tuples, dicts, sets and objects of them. An object
is carried into the one that the receiver's own script has made at the same place.
"""

import functools
import types
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np
import torch
from torch import nn

from elastane.run.worker.state.change_detector import digest_tensor
from elastane.run.worker.state.json_state import TENSOR

KIND = "elastane.kind"
"""The JSON key of a value that JSON does not have: a tuple, a set, an array, an object."""

MOST_BYTES, ENTRY_BYTES = 1 << 17, 64
"""Larger data is not read in every step; and the bytes that an entry counts for, beside its own."""

_NUMBERS = {bool: b"b", int: b"i", str: b"s", type(None): b"n"}
_NO_DATA = (
    type,
    nn.Module,
    types.FunctionType,
    types.MethodType,
    types.BuiltinFunctionType,
    types.ModuleType,
    types.GeneratorType,
    functools.partial,
)


class NotPlain(TypeError):
    """A value that contains something else than plain data."""


class ReadLimitExceeded(Exception):
    """A value that is too large to be read in every step."""


class _Budget:
    """The bytes that a read may still take; None: any number."""

    def __init__(self, left: int | None) -> None:
        self._left = left

    def spend(self, nbytes: int) -> None:
        if self._left is not None:
            self._left -= nbytes
            if self._left < 0:
                raise ReadLimitExceeded


def encode_plain(value: object, *, limited: bool = False) -> bytes:
    """Return bytes that are equal for equal data, and for no other; they include all types.

    Args:
        limited: read only values of a moderate size.

    Raises:
        NotPlain: the value is not plain.
        ReadLimitExceeded: the value is too large for a limited read.
    """
    pieces: list[bytes] = []
    try:
        _add_bytes(value, pieces, [], _Budget(MOST_BYTES if limited else None))
    except RecursionError as error:
        raise NotPlain("nested too deeply") from error
    return b"".join(pieces)


def is_same(one: object, other: object) -> bool:
    """Return whether two values have the same bytes; values that are not plain are the same if identical."""
    if one is other and type(one) in _NUMBERS:
        return True
    if type(one) is not type(other):
        return False
    try:
        return encode_plain(one) == encode_plain(other)
    except NotPlain:
        return one is other


def _add_bytes(value: Any, pieces: list[bytes], above: list[int], budget: "_Budget") -> None:
    kind = type(value)
    tag = _NUMBERS.get(kind)
    if tag is not None:
        text = str(value).encode("utf-8", "surrogatepass")
        budget.spend(len(text))
        pieces.append(tag + str(len(text)).encode() + b":" + text)
    elif kind is float or kind is complex:
        pieces.append(b"f" + np.asarray(value).tobytes())
    elif isinstance(value, torch.Tensor):
        if isinstance(value, nn.Parameter):
            raise NotPlain("a parameter")
        if value.layout is not torch.strided or value.is_quantized or value.is_meta:
            raise NotPlain("a tensor that is not dense")
        budget.spend(value.nbytes if value.device.type == "cpu" else MOST_BYTES + 1)
        pieces.append(b"t" + digest_tensor(value).encode())
    elif isinstance(value, np.ndarray | np.generic):
        if value.dtype.hasobject:
            raise NotPlain("an array of objects")
        budget.spend(value.nbytes)
        pieces.append(f"a{kind.__name__}{value.dtype.str}{value.shape}:".encode() + value.tobytes())
    elif kind is bytes or kind is bytearray:
        budget.spend(len(value))
        pieces.append(f"y{kind.__name__}{len(value)}:".encode() + bytes(value))
    elif isinstance(value, int | float | str):
        pieces.append(f"e{kind.__qualname__}:".encode())
        _add_bytes(_find_base(value), pieces, above, budget)
    elif isinstance(value, torch.dtype | torch.device | range):
        pieces.append(f"d{value!r};".encode())
    else:
        _add_parts(value, pieces, above, budget)


def _find_base(value: Any) -> int | float | str:
    """Return a number or text of a class of its own, such as a member of an IntEnum, as one of Python's."""
    if isinstance(value, str):
        return str.__str__(value)
    return int.__int__(value) if isinstance(value, int) else float.__float__(value)


def _add_parts(value: Any, pieces: list[bytes], above: list[int], budget: "_Budget") -> None:
    if id(value) in above:
        pieces.append(f"r{above.index(id(value))};".encode())
        return
    name, parts = _list_parts(value)
    budget.spend(ENTRY_BYTES * len(parts))
    pieces.append(f"{name}{len(parts)}:".encode())
    above.append(id(value))
    for part in parts:
        _add_bytes(part, pieces, above, budget)
    above.pop()


def _list_parts(value: Any) -> tuple[str, list[Any]]:
    """Return the name of a value's type, and its entries, with the keys of those that have some."""
    kind = type(value)
    name = kind.__qualname__
    parts: list[Any] = []
    if isinstance(value, Mapping):
        parts += [part for item in list(value.items()) for part in item]
    elif isinstance(value, list | tuple | set | frozenset | deque):
        parts += value
    elif not hasattr(value, "__dict__") or isinstance(value, _NO_DATA) or _is_of_torch(kind):
        raise NotPlain(f"{name} is not plain data")
    if hasattr(value, "__dict__"):
        parts += [part for item in list(vars(value).items()) for part in item]
    return name, parts


def _is_of_torch(kind: type) -> bool:
    """Return whether torch defines a type; its objects have memory that no attribute shows."""
    return kind.__module__.partition(".")[0] == "torch"


# -- carried to another worker ---------------------------------------------------------------------------


def describe_plain(value: Any, name: str, tensors: dict[str, torch.Tensor]) -> Any:
    """Describe a value as JSON, with references to tensors.

    Args:
        name: the name of the value, and the prefix of its tensors' names.
        tensors: receives the tensors, by name.

    Raises:
        NotPlain: it contains something that cannot be carried.
    """
    kind = type(value)
    if kind in _NUMBERS or kind is float:
        return value
    if isinstance(value, torch.Tensor):
        encode_plain(value)
        tensors[name] = value.detach()
        return {TENSOR: name, "shape": list(value.shape), "dtype": str(value.dtype)}
    if kind is complex:
        return {KIND: "complex", "of": [value.real, value.imag]}
    if kind in (bytes, bytearray):
        return {KIND: kind.__name__, "of": value.hex()}
    if kind is range:
        return {KIND: "range", "of": [value.start, value.stop, value.step]}
    if isinstance(value, torch.dtype):
        return {KIND: "dtype", "of": str(value).removeprefix("torch.")}
    if isinstance(value, torch.device):
        return {KIND: "device", "of": str(value)}
    if isinstance(value, np.ndarray | np.generic) and not value.dtype.hasobject:
        tensors[name] = torch.frombuffer(bytearray(value.tobytes() or b"\0"), dtype=torch.uint8)
        array = {"dtype": value.dtype.str, "shape": list(value.shape), TENSOR: name}
        return {KIND: "array" if isinstance(value, np.ndarray) else "number", **array}

    if isinstance(value, int | float | str):
        return _find_base(value)

    def describe_parts(parts: Iterable[Any]) -> list[Any]:
        return [describe_plain(part, f"{name}.{place}", tensors) for place, part in enumerate(parts)]

    if kind is list:
        return describe_parts(value)
    if kind in (tuple, set, frozenset, deque):
        if kind in (set, frozenset) and list(kind(list(value))) != list(value):
            raise NotPlain(f"{kind.__name__} with an order of its own")
        maxlen = {"maxlen": value.maxlen} if kind is deque else {}
        return {KIND: kind.__name__, "of": describe_parts(value), **maxlen}
    _list_parts(value)
    described: dict[str, Any] = {KIND: "dict" if kind is dict else "object", "type": kind.__qualname__}
    if isinstance(value, Mapping):
        described["items"] = describe_parts(part for item in list(value.items()) for part in item)
    if hasattr(value, "__dict__"):
        described["fields"] = {
            field: describe_plain(part, f"{name}.{field}", tensors)
            for field, part in list(vars(value).items())
        }
    elif isinstance(value, list | tuple | set | frozenset):
        raise NotPlain(f"{kind.__qualname__} is not plain data")
    return described


def restore_plain(described: Any, tensors: Mapping[str, torch.Tensor], present: Any = None) -> Any:
    """Return the value that `describe_plain` described; objects, lists and dicts change in place.

    Args:
        present: the receiver's own value at the same place.

    Raises:
        NotPlain: the receiver has no such object.
    """
    if isinstance(described, list):
        old = present if type(present) is list else []
        olds = [*old, *([None] * len(described))]
        old[:] = [restore_plain(part, tensors, before) for part, before in zip(described, olds, strict=False)]
        return old
    if not isinstance(described, dict):
        return described
    if KIND not in described:
        return _restore_tensor(tensors[described[TENSOR]], present)
    return _RESTORE[described[KIND]](described, tensors, present)


@torch.no_grad()
def _restore_tensor(carried: torch.Tensor, present: Any) -> torch.Tensor:
    """Return a tensor, in the memory that is there if it fits: other objects may refer to that."""
    if not isinstance(present, torch.Tensor):
        return carried
    if (present.shape, present.dtype) != (carried.shape, carried.dtype):
        return carried.to(present.device)
    present.data.copy_(carried)
    return present


def _restore_array(described: Any, tensors: Mapping[str, torch.Tensor], present: Any) -> Any:
    shape = tuple(described["shape"])
    count = int(np.prod(shape, dtype=np.int64))
    flat = np.frombuffer(tensors[described[TENSOR]].numpy().tobytes(), described["dtype"], count)
    array = flat.reshape(shape).copy()
    if described[KIND] == "number":
        return array[()]
    if type(present) is np.ndarray and (present.shape, present.dtype) == (array.shape, array.dtype):
        present[...] = array
        return present
    return array


def _restore_object(described: Any, tensors: Mapping[str, torch.Tensor], present: Any) -> Any:
    if described[KIND] == "dict" and type(present) is not dict:
        present = {}
    if type(present).__qualname__ != described["type"]:
        raise NotPlain(f"no object of {described['type']} is there to take its values")
    if "items" in described:
        parts = described["items"]
        keys = [restore_plain(key, tensors) for key in parts[::2]]
        entries = [
            restore_plain(entry, tensors, present.get(key))
            for key, entry in zip(keys, parts[1::2], strict=True)
        ]
        present.clear()
        present.update(zip(keys, entries, strict=True))
    if "fields" in described:
        fields = vars(present)
        values = {
            field: restore_plain(part, tensors, fields.get(field))
            for field, part in described["fields"].items()
        }
        fields.clear()
        fields.update(values)
    return present


def _build_sequence(kind: Callable[[Iterable[Any]], Any]) -> Callable[..., Any]:
    def restore(described: Any, tensors: Mapping[str, torch.Tensor], _present: Any) -> Any:
        return kind([restore_plain(part, tensors) for part in described["of"]])

    return restore


def _restore_deque(described: Any, tensors: Mapping[str, torch.Tensor], _present: Any) -> Any:
    return deque([restore_plain(part, tensors) for part in described["of"]], described["maxlen"])


_RESTORE: dict[str, Callable[..., Any]] = {
    "tuple": _build_sequence(tuple),
    "set": _build_sequence(set),
    "frozenset": _build_sequence(frozenset),
    "deque": _restore_deque,
    "array": _restore_array,
    "number": _restore_array,
    "dict": _restore_object,
    "object": _restore_object,
    "complex": lambda described, *_: complex(*described["of"]),
    "bytes": lambda described, *_: bytes.fromhex(described["of"]),
    "bytearray": lambda described, *_: bytearray.fromhex(described["of"]),
    "range": lambda described, *_: range(*described["of"]),
    "device": lambda described, *_: torch.device(described["of"]),
    "dtype": lambda described, *_: getattr(torch, described["of"]),
}
