"""Plain data in attributes of modules and other objects, which no state dict contains."""

import copy
import json
import operator
from collections.abc import Iterable, Mapping
from collections.abc import Set as AbstractSet
from typing import Any, TypeAlias

import msgspec
import torch
from torch import nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from elastane.common.errors import BadInput
from elastane.run.worker.state.plain_data import (
    MOST_BYTES,
    NotPlain,
    ReadLimitExceeded,
    describe_plain,
    encode_plain,
    is_same,
    restore_plain,
)

SCALARS = (bool, int, float, str, type(None))
EXACT_SCALARS = frozenset(SCALARS)
OWN_PACKAGE = __name__.partition(".")[0]
CONTAINERS = (list, tuple, dict, set, frozenset)
OF_MODULES = frozenset(vars(nn.Module())) - {"training"}
HOOKS = tuple(name for name in OF_MODULES if name.endswith(("_hooks", "_pre_hooks")))

Key: TypeAlias = tuple[str, str]
"""Path of a module in the model, and the name of its attribute."""


class PlainCopy(msgspec.Struct, frozen=True):
    """Plain data other than a number or a text, as it was at one moment.

    Args:
        value: the value itself, which may have changed since.
        content: its bytes then.
        copied: a copy of it; the value itself, if it cannot change.
        parts: its entries, if all are numbers and texts: as long as they are the same, so are the bytes.
    """

    value: Any
    content: bytes
    copied: Any
    parts: tuple[Any, ...] | None


class Opaque(msgspec.Struct, frozen=True):
    """A value that is not plain data, such as a function."""

    value: Any


class Live(msgspec.Struct, frozen=True):
    """A tensor, or large plain data: it is read when it is needed, not in every step."""

    value: Any


Reading: TypeAlias = dict[Key, Any]
"""The attributes at one moment: numbers and texts themselves, and `PlainCopy`, `Opaque` or `Live`."""


class ModuleAttributes:
    """Plain data in attributes of modules, as it was at one moment.

    Args:
        root: a module, with all modules in it; or any other object, alone.
        reading: of `read_attributes` at an earlier moment, in place of the present one.
    """

    def __init__(self, root: object, reading: Mapping[Key, Any] | None = None) -> None:
        self._root = root
        reading = read_attributes(list_holders(root)) if reading is None else reading
        self._values = {key: value for key, value in reading.items() if not isinstance(value, Live)}
        live = {key for key, value in reading.items() if isinstance(value, Live)}
        for path, holder in list_holders(root):
            for name, value in list(vars(holder).items()):
                if (path, name) in live or (name not in OF_MODULES and _is_read_live(value, holder)):
                    self._values[path, name] = _copy(value)
        present = {(path, name) for path, holder in list_holders(root) for name in list(vars(holder))}
        # Large data of objects other than modules.
        self._left_out = present - self._values.keys()
        self._hooks = _list_hooks(root)

    def restore(self, *, but: AbstractSet[Key] = frozenset()) -> None:
        """Restore all attributes, and remove those that were added since.

        Hooks stay, and so do new attributes of modules that have got hooks. Such an attribute may say that
        they are there, and without it the next forward pass would add them once more.

        Args:
            but: the attributes that stay as they are.
        """
        holders = dict(list_holders(self._root))
        current = ModuleAttributes(self._root)._values
        hooked = [path for path, _ in _list_hooks(self._root) - self._hooks]
        for path, name in current.keys() - self._values.keys() - self._left_out - but:
            is_opaque = isinstance(current[path, name], Opaque)
            if not is_opaque and not any(_is_inside(holder, path) for holder in hooked):
                delattr(holders[path], name)
        for (path, name), value in self._values.items():
            if (path, name) in but or isinstance(value, Opaque):
                continue
            if (path, name) in current and _is_unchanged(current[path, name], value, identical=True):
                continue
            if isinstance(value, PlainCopy):
                setattr(holders[path], name, restore_copy(value))
            else:
                setattr(holders[path], name, value)

    def find_changed(self, since: "ModuleAttributes") -> dict[Key, Any]:
        """Return the attributes that are new or differ from an earlier moment, with their values here."""
        earlier = since._values
        return {
            key: value
            for key, value in self._values.items()
            if key not in earlier or not _is_unchanged(value, earlier[key], identical=False)
        }

    def describe_changed(
        self, since: "ModuleAttributes", prefix: str, tensors: dict[str, torch.Tensor], but: AbstractSet[Key]
    ) -> list[list[Any]]:
        """Describe the attributes that have changed since an earlier moment, as JSON and tensors.

        Args:
            prefix: begins the names of the tensors.
            tensors: receives the tensors, by name.
            but: attributes to leave out.
        """
        described = []
        for key, value in self.find_changed(since).items():
            if key in but or isinstance(value, Opaque):
                continue
            name = f"{prefix}.{key[0]}.{key[1]}"
            before = since._values.get(key)
            try:
                entry = describe_plain(_get_data(value), name, tensors)
            except NotPlain as error:
                raise build_attribute_error(key, str(error)) from error
            described.append([*key, entry, *([True] if _is_same_object(value, before) else [])])
        return described


ENTRIES, TENSORS = "elastane.attributes", "elastane.tensors"
"""The keys of the changed attributes of a kept object, as JSON text, and of the tensors that it refers to."""


class KeptAttributes:
    """Plain data in attributes of an object in ``run.keep``, which its state dict may lack.

    Args:
        root: a module, with all modules in it; or any other object, of which large data is left out.
    """

    def __init__(self, root: object) -> None:
        self._root, self._holders = root, list_holders(root)
        self._reading: Reading = {}
        self._first = self._read()
        # Attributes that change when the object is used, as the number of samples that a dataset has read.
        self._excluded: frozenset[Key] = frozenset()

    def _read(self) -> ModuleAttributes:
        self._reading = read_attributes(self._holders, self._reading)
        if isinstance(self._root, nn.Module):
            return ModuleAttributes(self._root, self._reading)
        small = {key: value for key, value in self._reading.items() if not isinstance(value, Live)}
        return ModuleAttributes(self._root, small)

    def describe_changed(self) -> dict[str, Any]:
        """Describe the attributes that have changed since the object was kept; empty if none has."""
        tensors: dict[str, torch.Tensor] = {}
        changed = self._read().describe_changed(self._first, "", tensors, self._excluded)
        return {ENTRIES: json.dumps(changed), TENSORS: tensors} if changed else {}

    def restore(self) -> None:
        """Restore the attributes that the object had when it was kept."""
        self._first.restore(but=self._excluded)

    def exclude_changed(self) -> None:
        """Exclude the attributes that have changed since the object was kept."""
        self._excluded = frozenset(self._read().find_changed(self._first))

    def remember(self) -> None:
        """Remember the present attributes, for `check_unchanged`."""
        self._read()

    def check_unchanged(self) -> None:
        """Check that the attributes are those of `remember`.

        Raises:
            BadInput: the script has changed one.
        """
        before = self._reading
        self._read()
        for key, value in self._reading.items():
            if key in self._excluded or isinstance(value, Live) or value is before.get(key):
                continue
            if key not in before or not _is_unchanged(value, before[key], identical=False):
                raise BadInput(
                    f"the attribute {key[1]} of the dataset was changed between two steps",
                    means="loader processes have copies of the dataset from the beginning of the run",
                    do="use loaders=0; or let the samples stay the same, and change them in the inner loop",
                )

    def load(self, described: Mapping[str, Any]) -> None:
        """Load the result of `describe_changed` on another worker."""
        set_attributes(self._root, json.loads(described[ENTRIES]), described[TENSORS])


def has_attributes(value: object) -> bool:
    """Return whether state may be in attributes of an object beside its state dict.

    Optimizers, schedules and objects of Elastane itself have all of it in their state dicts.
    """
    if isinstance(value, nn.Module):
        return True
    if type(value).__module__.partition(".")[0] == OWN_PACKAGE:
        return False
    return hasattr(value, "__dict__") and not isinstance(value, torch.Tensor | Optimizer | LRScheduler)


def is_opaque(value: object) -> bool:
    """Return whether an entry of a reading is not plain data."""
    return isinstance(value, Opaque)


def list_holders(root: object) -> list[tuple[str, Any]]:
    """Return the modules of a module, by path; of another object, the object itself."""
    return list(root.named_modules()) if isinstance(root, nn.Module) else [("", root)]


def read_attributes(
    holders: Iterable[tuple[str, Any]], before: Mapping[Key, Any] | None = None
) -> dict[Key, Any]:
    """Read the attributes of modules; values that have not changed are not copied again.

    Args:
        holders: the modules, by path.
        before: an earlier reading.
    """
    before = before or {}
    found: dict[Key, Any] = {}
    # Modules of a model often share one configuration.
    shared: dict[int, Any] = {}
    for path, holder in holders:
        # A copy of the items: the reactor may read while a forward pass adds an attribute to the module.
        for name, value in list(vars(holder).items()):
            if name in OF_MODULES:
                continue
            if type(value) in EXACT_SCALARS or isinstance(value, SCALARS):
                found[path, name] = value
            elif isinstance(value, torch.Tensor):
                found[path, name] = Live(value)
            else:
                number = id(value)
                if number not in shared:
                    shared[number] = read_plain(value, before.get((path, name)))
                found[path, name] = shared[number]
    return found


def read_plain(value: Any, known: Any) -> Any:
    """Read plain data as a `PlainCopy`, the known one if nothing has changed; else `Opaque` or `Live`."""
    if isinstance(known, PlainCopy) and known.value is value and _has_parts(value, known.parts):
        return known
    if isinstance(known, Opaque) and known.value is value and not isinstance(value, CONTAINERS):
        return known
    try:
        content = encode_plain(value, limited=True)
        if isinstance(known, PlainCopy) and known.value is value and known.content == content:
            return known
        return PlainCopy(value, content, _copy_plain(value), _list_parts(value))
    except ReadLimitExceeded:
        return Live(value)
    except NotPlain:
        return Opaque(value)


def _list_parts(value: Any) -> tuple[Any, ...] | None:
    """Return the entries of a list, tuple or dict of numbers and texts; None: it is something else."""
    if type(value) in (list, tuple):
        parts = tuple(value)
    elif type(value) is dict:
        parts = (*value, *value.values())
    else:
        return None
    return parts if EXACT_SCALARS.issuperset(map(type, parts)) else None


def _has_parts(value: Any, parts: tuple[Any, ...] | None) -> bool:
    if parts is None:
        return False
    if value is parts:
        return True
    now = (*value, *value.values()) if type(value) is dict else value
    return len(now) == len(parts) and all(map(operator.is_, now, parts))


def _copy_plain(value: Any) -> Any:
    if isinstance(value, tuple) and all(type(entry) in SCALARS for entry in value):
        return value
    try:
        return copy.deepcopy(value)
    except (RuntimeError, TypeError, ValueError, AttributeError, copy.Error) as error:
        raise NotPlain("cannot be copied") from error


def set_attributes(root: object, described: Iterable[list[Any]], tensors: Mapping[str, torch.Tensor]) -> None:
    """Set attributes that `ModuleAttributes.describe_changed` described; skip those of unknown modules.

    Raises:
        NotPlain: the receiver lacks an object that takes the values of another one.
    """
    holders = dict(list_holders(root))
    for path, name, entry, *in_place in described:
        if path in holders:
            present = vars(holders[path]).get(name)
            value = restore_plain(entry, tensors, present if in_place else None)
            if isinstance(value, torch.Tensor) and isinstance(present, torch.Tensor):
                value = value.to(present.device)
            setattr(holders[path], name, value)


def find_other_values(before: Reading, now: Reading) -> Reading:
    """Return the part of a reading that has another value, or other content, than an earlier one."""
    return {
        key: value
        for key, value in now.items()
        if value is not (earlier := before.get(key, before))
        and not (isinstance(value, Live) and isinstance(earlier, Live) and value.value is earlier.value)
    }


def check_changes(before: Mapping[Key, Any], now: Mapping[Key, Any], known: AbstractSet[int]) -> None:
    """Check that what a script has given to modules between two steps can be carried.

    Args:
        before: the reading of the step before.
        now: the present reading.
        known: the identities of the values of all attributes before the script changed them.

    Raises:
        BadInput: an attribute has a new value that is not plain data.
    """
    for key, value in now.items():
        if not isinstance(value, PlainCopy | Opaque):
            continue
        earlier = before.get(key)
        if value is earlier or id(value.value) in known:
            continue
        if isinstance(value, Opaque) or (is_object(value.value) and not _is_same_object(value, earlier)):
            raise build_attribute_error(key, f"{type(value.value).__name__} is not plain data")


def build_attribute_error(key: Key, why: str) -> BadInput:
    name = ".".join(filter(None, key))
    return BadInput(
        f"the attribute {name} was changed between two steps, and cannot be carried: {why}",
        means="a worker that joins later would have the value from the beginning of the script",
        do="set it before run.prepare; afterwards change only numbers, texts, tensors, arrays, and lists, "
        "dicts and tuples of them, or the attributes of an object that is there from the beginning",
    )


def _get_data(value: Any) -> Any:
    return value.copied if isinstance(value, PlainCopy) else value


def is_object(value: Any) -> bool:
    """Return whether plain data is an object with attributes, such as a configuration."""
    return type(value) not in CONTAINERS and hasattr(value, "__dict__")


def _is_same_object(value: Any, before: Any) -> bool:
    both = isinstance(value, PlainCopy) and isinstance(before, PlainCopy)
    return both and value.value is before.value


def restore_copy(value: PlainCopy) -> Any:
    """Return the value itself, with the content of the copy."""
    if value.copied is value.value:
        return value.value
    tensors: dict[str, torch.Tensor] = {}
    return restore_plain(describe_plain(value.copied, "", tensors), tensors, value.value)


def count_hooks(module: nn.Module) -> int:
    """Return how many hooks a module has."""
    attributes = vars(module)
    return sum(len(attributes.get(name, ())) for name in HOOKS)


def _list_hooks(root: object) -> set[tuple[str, int]]:
    """Return the path of the module of each hook, and the number that torch has given to the hook."""
    return {
        (path, number)
        for path, holder in list_holders(root)
        for name in HOOKS
        for number in list(vars(holder).get(name, ()))
    }


def _is_inside(path: str, module: str) -> bool:
    """Return whether a path is that of the module, or of one in it."""
    return not module or path == module or path.startswith(f"{module}.")


def _is_read_live(value: Any, holder: object) -> bool:
    """Return whether an attribute is a tensor; objects without a module have large ones in the state dict."""
    is_tensor = isinstance(value, torch.Tensor)
    return is_tensor and (isinstance(holder, nn.Module) or value.nbytes <= MOST_BYTES)


def _copy(value: Any) -> Any:
    # Detached: a tensor that a forward pass leaves behind may hold a whole autograd graph.
    if isinstance(value, nn.Parameter):
        return Opaque(value)
    if isinstance(value, torch.Tensor):
        return value.detach().clone()
    try:
        return PlainCopy(value, encode_plain(value), _copy_plain(value), None)
    except NotPlain:
        return Opaque(value)


def _is_unchanged(one: Any, other: Any, *, identical: bool) -> bool:
    """Return whether two readings of an attribute are of the same data.

    Args:
        identical: lists, dicts and objects must also be the same objects.
    """
    if isinstance(one, Opaque) and isinstance(other, Opaque):
        return one.value is other.value
    if isinstance(one, PlainCopy) and isinstance(other, PlainCopy):
        return one.content == other.content and not (identical and one.value is not other.value)
    return is_same(one, other)
