"""Numbers and tensors in plain attributes of modules, which no state dict contains."""

import weakref
from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from typing import Any, TypeAlias

import torch
from torch import nn

SCALARS = (bool, int, float, str, type(None))
KINDS = (*SCALARS, torch.Tensor)
OF_MODULES = frozenset(vars(nn.Module())) - {"training"}

Key: TypeAlias = tuple[str, str]
"""Path of a module in the model, and the name of its attribute."""


class ModuleAttributes:
    """Numbers, strings and tensors in plain attributes of a model's modules, as they were at one moment."""

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self._values = {key: _copy(value) for key, value in _list_attributes(model)}
        self._marks = [(vars(module), _mark_attributes(vars(module))) for module in model.modules()]

    def refresh(self) -> "ModuleAttributes":
        """Return the attributes as they are now: this object if none has changed.

        The model has the same modules as before.
        """
        same = all(_have_marks(attributes, marks) for attributes, marks in self._marks)
        return self if same else ModuleAttributes(self._model)

    def restore(self, *, but: AbstractSet[Key] = frozenset()) -> None:
        """Restore all attributes, and remove those that were added since.

        Args:
            but: the attributes that stay as they are.
        """
        modules = dict(self._model.named_modules())
        current = dict(_list_attributes(self._model))
        for path, name in current.keys() - self._values.keys() - but:
            delattr(modules[path], name)
        for (path, name), value in self._values.items():
            if (path, name) in but:
                continue
            if (path, name) not in current or not _are_equal(current[path, name], value):
                setattr(modules[path], name, value)

    def find_changed(self, since: "ModuleAttributes") -> dict[Key, Any]:
        """Return the attributes that are new or differ from an earlier moment, with their values here."""
        earlier = since._values  # noqa: SLF001 - another one of this class
        return {
            key: value
            for key, value in self._values.items()
            if key not in earlier or not _are_equal(earlier[key], value)
        }


def set_attributes(model: nn.Module, values: Mapping[Key, Any]) -> None:
    """Set attributes of modules; skip attributes of modules that the model does not have."""
    modules = dict(model.named_modules())
    for (path, name), value in values.items():
        if path in modules:
            setattr(modules[path], name, value)


def _list_attributes(model: nn.Module) -> list[tuple[Key, Any]]:
    return [
        ((path, name), value)
        for path, module in model.named_modules()
        for name, value in _select(vars(module))
    ]


def _mark_attributes(attributes: Mapping[str, Any]) -> dict[str, Any]:
    """Return a mark of each attribute: its value, or a weak reference to a tensor with its version."""
    return {
        name: (weakref.ref(value), value._version) if isinstance(value, torch.Tensor) else value  # noqa: SLF001
        for name, value in _select(attributes)
    }


def _have_marks(attributes: Mapping[str, Any], marks: Mapping[str, Any]) -> bool:
    """Return whether the attributes are those that have these marks; an equal number may count as another."""
    found = 0
    for name, value in list(attributes.items()):
        if name in OF_MODULES or not isinstance(value, KINDS):
            continue
        mark = marks.get(name, OF_MODULES)
        if value is not mark and not _is_marked_tensor(value, mark):
            return False
        found += 1
    return found == len(marks)


def _is_marked_tensor(value: Any, mark: Any) -> bool:
    if not (isinstance(value, torch.Tensor) and isinstance(mark, tuple)):
        return False
    reference, version = mark
    return reference() is value and version == value._version  # noqa: SLF001


def _select(attributes: Mapping[str, Any]) -> list[tuple[str, Any]]:
    """Return the numbers, strings and tensors that no module of torch has of its own."""
    return [
        (name, value)
        # A copy of the items: the reactor may read while a forward pass adds an attribute to the module.
        for name, value in list(attributes.items())
        if name not in OF_MODULES and isinstance(value, KINDS)
    ]


def _copy(value: Any) -> Any:
    # Detached: a tensor that a forward pass leaves behind may hold a whole autograd graph.
    return value.detach().clone() if isinstance(value, torch.Tensor) else value


def _are_equal(one: Any, other: Any) -> bool:
    if isinstance(one, torch.Tensor) and isinstance(other, torch.Tensor):
        if (one.shape, one.dtype, one.device) != (other.shape, other.dtype, other.device):
            return False
        return torch.equal(one.detach(), other.detach()) or repr(one) == repr(other)
    return type(one) is type(other) and (one == other or repr(one) == repr(other))
