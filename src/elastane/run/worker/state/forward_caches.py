"""Caches that forward passes change in modules: non-persistent buffers, and plain data in attributes.

A rotary embedding, for example, rescales its frequencies for the longest sequence that it has seen. Workers
see other sequences, so each microbatch begins with the caches of the beginning of the step.
"""

import operator
from collections.abc import Iterable, Mapping
from itertools import chain
from typing import Any, TypeAlias

import msgspec
import torch
from torch import nn

from elastane.run.worker.state.module_attributes import (
    CONTAINERS,
    EXACT_SCALARS,
    OF_MODULES,
    Key,
    PlainCopy,
    count_hooks,
    read_plain,
    restore_copy,
)

Place: TypeAlias = tuple[bool, str]
"""Whether it is a buffer, and its name."""


class CachedValue(msgspec.Struct, frozen=True):
    """A value at one moment.

    Args:
        value: the value itself, which may have changed since.
        content: of a tensor, a copy; of a list or dict, a `PlainCopy`; otherwise the value.
        version: autograd's count of in-place changes of a tensor; 0: the value is not a tensor.
    """

    value: Any
    content: Any
    version: int = 0


class _Watched:
    """A module with caches.

    Args:
        attributes: those that it had at the beginning of the step; None: those that it has.

    Attributes:
        base: its caches at the beginning of the step.
        left: its caches when the script got control after the step.
    """

    def __init__(self, module: nn.Module, attributes: Mapping[str, Any] | None = None) -> None:
        self.module, self.hooks = module, count_hooks(module)
        self.base = self.left = _read(module, {}, attributes)


class ForwardCaches:
    """The caches of the modules of one model, as they were at the beginning of the step.

    Only modules with a non-persistent buffer are looked at closely, and those in which a forward pass has
    given an attribute another value: most models have none or one. Of the others this compares references.
    """

    def __init__(self, model: nn.Module) -> None:
        self._modules = dict(model.named_modules())
        self._watched = {
            path: _Watched(module)
            for path, module in self._modules.items()
            if module._non_persistent_buffers_set
        }
        self._compare_others()

    def _compare_others(self) -> None:
        """Compare the attributes of all other modules with the present ones from now on."""
        self._others = [path for path in self._modules if path not in self._watched]
        self._attributes: list[dict[str, Any]] = [self._modules[path].__dict__ for path in self._others]
        self._before = [attributes.copy() for attributes in self._attributes]
        self._lengths = list(map(len, self._before))
        self._values = [value for attributes in self._before for value in attributes.values()]

    def _has_changed(self) -> bool:
        """Return whether a module has other objects in its attributes, or has them in another order."""
        # Each microbatch begins with this, so all modules are compared without a call of Python for each.
        if list(map(len, self._attributes)) != self._lengths:
            return True
        values: Iterable[Any] = chain.from_iterable(map(dict.values, self._attributes))
        return not all(map(operator.is_, values, self._values))

    def _watch_changed(self) -> None:
        """Look closely at modules of which an attribute has another value than before."""
        if not self._has_changed():
            return
        for path, before in zip(self._others, self._before, strict=True):
            now = vars(self._modules[path])
            if any(
                now.get(name) is not before.get(name) for name in now.keys() | before.keys() if _is_own(name)
            ):
                self._watched[path] = _Watched(self._modules[path], before)
        self._compare_others()

    def watch(self, attributes: Iterable[Key]) -> None:
        """Look at the modules of these attributes closely: a forward pass has changed them."""
        for path, _ in attributes:
            if path not in self._watched and path in self._modules:
                self._watched[path] = _Watched(self._modules[path])
        self._compare_others()

    def renew(self) -> None:
        """Take the present values for those of the beginning of the step, as after a load."""
        for watched in self._watched.values():
            watched.base = watched.left = _read(watched.module, {})
        self._compare_others()

    def begin_step(self, changed: Iterable[str]) -> None:
        """Begin a step: what the script has changed counts, what forward passes have left does not.

        Args:
            changed: names of buffers that the script has changed since the last step.
        """
        names = set(changed)
        if self._has_changed():
            self._compare_others()
        for path, watched in self._watched.items():
            now = _read(watched.module, watched.left)
            base: dict[Place, CachedValue] = {}
            for place in now.keys() | watched.base.keys():
                full = f"{path}.{place[1]}" if path else place[1]
                is_own = now.get(place) is not watched.left.get(place) or (place[0] and full in names)
                if (kept := (now if is_own else watched.base).get(place)) is not None:
                    base[place] = kept
            watched.base = base
        self.put_back()

    def put_back(self, *, all_of_it: bool = True) -> None:
        """Put back what forward passes have changed since the beginning of the step.

        Args:
            all_of_it: False: leave values where there were none, such as a loss that the script reads.
        """
        self._watch_changed()
        for watched in self._watched.values():
            _put_back(watched, all_of_it=all_of_it)

    def end_step(self) -> None:
        """Put the caches back for the script between two steps, and remember the values that stay."""
        self.put_back(all_of_it=False)
        for watched in self._watched.values():
            watched.left = _read(watched.module, watched.base)


def _read(
    module: nn.Module, known: Mapping[Place, CachedValue], attributes: Mapping[str, Any] | None = None
) -> dict[Place, CachedValue]:
    """Return the caches of a module; those that have not changed are the same objects as before.

    Args:
        attributes: those to read in place of the present ones.
    """
    found: dict[Place, CachedValue] = {}
    values = [((True, name), module._buffers.get(name)) for name in module._non_persistent_buffers_set]
    own = vars(module) if attributes is None else attributes
    values += [((False, name), value) for name, value in own.items() if _is_own(name)]
    for place, value in values:
        if (kept := _keep(value, known.get(place))) is not None:
            found[place] = kept
    return found


def _is_own(name: str) -> bool:
    return name not in OF_MODULES and name != "training"


def _keep(value: Any, known: CachedValue | None) -> CachedValue | None:
    """Return a value with its content; None: it is not plain data, or is too large."""
    if known is not None and _is_unchanged(value, known):
        return known
    if isinstance(value, torch.Tensor):
        return CachedValue(value, value.detach().clone(), _read_version(value))
    if type(value) in EXACT_SCALARS:
        return CachedValue(value, value)
    if type(value) not in CONTAINERS:
        return None
    content = read_plain(value, None)
    return CachedValue(value, content) if isinstance(content, PlainCopy) else None


def _is_unchanged(value: Any, kept: CachedValue) -> bool:
    if value is not kept.value:
        return type(value) in EXACT_SCALARS and type(value) is type(kept.value) and value == kept.value
    if isinstance(value, torch.Tensor):
        return _read_version(value) == kept.version
    return not isinstance(kept.content, PlainCopy) or read_plain(value, kept.content) is kept.content


def _read_version(tensor: torch.Tensor) -> int:
    # Tensors of the inference mode do not count their changes.
    return 0 if tensor.is_inference() else tensor._version


def _put_back(watched: _Watched, *, all_of_it: bool) -> None:
    module, attributes = watched.module, vars(watched.module)
    for place, kept in watched.base.items():
        is_buffer, name = place
        present = (module._buffers if is_buffer else attributes).get(name)
        if _is_unchanged(present, kept) or (kept.value is None and not all_of_it):
            continue
        value = _restore(kept)
        if is_buffer:
            module._buffers[name] = value
        else:
            attributes[name] = value
        if isinstance(value, torch.Tensor):
            watched.base = {**watched.base, place: CachedValue(value, kept.content, _read_version(value))}
    if not all_of_it or count_hooks(module) != watched.hooks:
        # An attribute may say that hooks are there: without it the next pass would add them once more.
        return
    for name in module._non_persistent_buffers_set - {name for is_buffer, name in watched.base if is_buffer}:
        module._non_persistent_buffers_set.discard(name)
        module._buffers.pop(name, None)
    for name in [name for name in attributes if _is_own(name) and (False, name) not in watched.base]:
        if _keep(attributes[name], None) is not None:
            delattr(module, name)


@torch.no_grad()
def _restore(kept: CachedValue) -> Any:
    """Return the value itself, with its content at that moment."""
    if isinstance(kept.value, torch.Tensor):
        if not kept.value.is_inference() and kept.value._version != kept.version:
            kept.value.copy_(kept.content)
        return kept.value
    return restore_copy(kept.content) if isinstance(kept.content, PlainCopy) else kept.value
