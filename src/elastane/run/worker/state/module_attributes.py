"""Numbers and tensors in plain attributes of modules, which no state dict contains."""

from collections.abc import Iterable, Mapping
from collections.abc import Set as AbstractSet
from typing import Any, TypeAlias

import torch
from torch import nn

SCALARS = (bool, int, float, str, type(None))
OF_MODULES = frozenset(vars(nn.Module())) - {"training"}
HOOKS = tuple(name for name in OF_MODULES if name.endswith(("_hooks", "_pre_hooks")))

Key: TypeAlias = tuple[str, str]
"""Path of a module in the model, and the name of its attribute."""


class ModuleAttributes:
    """Numbers, strings and tensors in plain attributes of a model's modules, as they were at one moment.

    Args:
        scalars: of `read_scalars` at an earlier moment, in place of the present ones.
    """

    def __init__(self, model: nn.Module, scalars: Mapping[Key, Any] | None = None) -> None:
        self._model = model
        self._values = {
            key: _copy(value)
            for key, value in _list_attributes(model)
            if scalars is None or isinstance(value, torch.Tensor)
        }
        self._values |= scalars or {}
        self._hooks = _list_hooks(model)

    def restore(self, *, but: AbstractSet[Key] = frozenset()) -> None:
        """Restore all attributes, and remove those that were added since.

        Hooks stay, and so do new attributes of modules that have got hooks. Such an attribute may say that
        they are there, and without it the next forward pass would add them once more.

        Args:
            but: the attributes that stay as they are.
        """
        modules = dict(self._model.named_modules())
        current = dict(_list_attributes(self._model))
        hooked = [path for path, _ in _list_hooks(self._model) - self._hooks]
        for path, name in current.keys() - self._values.keys() - but:
            if not any(_is_inside(module, path) for module in hooked):
                delattr(modules[path], name)
        for (path, name), value in self._values.items():
            if (path, name) in but:
                continue
            if (path, name) not in current or not _are_equal(current[path, name], value):
                setattr(modules[path], name, value)

    def find_changed(self, since: "ModuleAttributes") -> dict[Key, Any]:
        """Return the attributes that are new or differ from an earlier moment, with their values here."""
        earlier = since._values
        return {
            key: value
            for key, value in self._values.items()
            if key not in earlier or not _are_equal(earlier[key], value)
        }


def read_scalars(modules: Iterable[tuple[str, nn.Module]]) -> dict[Key, Any]:
    """Return the numbers and strings in plain attributes of named modules."""
    return {
        (path, name): value
        for path, module in modules
        for name, value in list(vars(module).items())
        if name not in OF_MODULES and isinstance(value, SCALARS)
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
        # A copy of the items: the reactor may read while a forward pass adds an attribute to the module.
        for name, value in list(vars(module).items())
        if name not in OF_MODULES and isinstance(value, (*SCALARS, torch.Tensor))
    ]


def _list_hooks(model: nn.Module) -> set[tuple[str, int]]:
    """Return the path of the module of each hook, and the number that torch has given to the hook."""
    return {
        (path, number)
        for path, module in model.named_modules()
        for name in HOOKS
        for number in list(vars(module).get(name, ()))
    }


def _is_inside(path: str, module: str) -> bool:
    """Return whether a path is that of the module, or of one in it."""
    return not module or path == module or path.startswith(f"{module}.")


def _copy(value: Any) -> Any:
    # Detached: a tensor that a forward pass leaves behind may hold a whole autograd graph.
    return value.detach().clone() if isinstance(value, torch.Tensor) else value


def _are_equal(one: Any, other: Any) -> bool:
    if isinstance(one, torch.Tensor) and isinstance(other, torch.Tensor):
        if (one.shape, one.dtype, one.device) != (other.shape, other.dtype, other.device):
            return False
        return torch.equal(one.detach(), other.detach()) or repr(one) == repr(other)
    return type(one) is type(other) and (one == other or repr(one) == repr(other))
