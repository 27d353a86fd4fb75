"""Options of engines and pools as values of their kind, once their form is checked."""

import contextlib
import re
import shlex
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias, TypeVar

import msgspec

from elastane.cluster.nouns.engine_options import OPTIONS, EngineKind, check_options
from elastane.common.durations import parse_duration_s
from elastane.common.errors import BadInput

T = TypeVar("T", bound=msgspec.Struct)
Readers: TypeAlias = Mapping[str, tuple[str, Callable[[str], Any]]]
"""The field of an option, and the function that reads its value."""
UNITS_BYTES = {"M": 1 << 20, "G": 1 << 30, "T": 1 << 40}


def parse_memory_bytes(text: str) -> int:
    """Return the bytes of ``64G``; see `elastane.cluster.nouns.option_forms.SIZE`."""
    return int(text[:-1]) * UNITS_BYTES[text[-1]]


def split_command(text: str) -> tuple[str, ...]:
    """Return the words of a command, as a shell splits it."""
    return tuple(shlex.split(text))


def parse_labels(text: str) -> dict[str, str]:
    """Return the labels of ``a=1,b=2``."""
    return {name: value for name, _, value in (label.partition("=") for label in text.split(","))}


COMMON: Readers = {
    "answer": ("answer_s", parse_duration_s),
    "command": ("command", split_command),
    "cpusPerDevice": ("cpus_per_device", int),
    "memoryPerDevice": ("memory_bytes_per_device", parse_memory_bytes),
}


def decode_engine(kind: EngineKind, into: type[T], options: Mapping[str, str], readers: Readers) -> T:
    """Return the options of an engine.

    Raises:
        BadField: one is unknown, or has another form.
    """
    check_options("options", f"an engine of kind {kind}", options, OPTIONS[kind].engine)
    return _decode(into, options, readers)


def decode_pool(kind: EngineKind, into: type[T], options: Mapping[str, str], readers: Readers) -> T:
    """Return the options of a pool of an engine; errors are those of `decode_engine`."""
    check_options("options", f"a pool of an engine of kind {kind}", options, OPTIONS[kind].pool)
    return _decode(into, options, readers)


def decode_pools(
    pools: Mapping[str, Mapping[str, str]], decode: Callable[[Mapping[str, str]], T]
) -> dict[str, T]:
    """Return the options of pools, without those of a pool that are not valid: the doctor explains them."""
    found = {}
    for name, options in pools.items():
        with contextlib.suppress(BadInput):
            found[name] = decode(options)
    return found


def _decode(into: type[T], options: Mapping[str, str], readers: Readers) -> T:
    """Read each option into its field; one without a reader has a field of its name, or is for others."""
    fields = {field.name for field in msgspec.structs.fields(into)}
    found: dict[str, Any] = {}
    for name, value in options.items():
        snake = re.sub(r"[A-Z]", lambda letter: f"_{letter[0].lower()}", name)
        field, read = {**COMMON, **readers}.get(name, (snake, str))
        if field in fields:
            found[field] = read(value)
    return into(**found)
