"""``run.keep``: values of the script that joining workers receive with all other state."""

from collections.abc import Callable, Iterator, MutableMapping
from types import MappingProxyType
from typing import Any

import torch

from elastane.common.errors import BadInput
from elastane.run.worker.state.json_state import (
    Stateful,
    digest_text,
    join_tensors,
    restore_types,
    split_tensors,
    to_json,
    to_json_text,
)
from elastane.run.worker.state.module_attributes import KeptAttributes, has_attributes

STATE = "elastane.state"
"""The key of the state dict of an object, beside those of `KeptAttributes.describe_changed`."""


def do_nothing() -> None:
    """Do nothing."""


class RunKeep(MutableMapping[str, Any]):
    """The script's own values by name: values that JSON can hold, tensors, and objects with a ``state_dict``.

    Values change between steps only, and in the same way on all workers; the votes check that. Lists become
    tuples and dicts become read-only, so that no change goes unnoticed. Tensors, modules and other objects
    stay the same objects, and change in place.

    Attributes:
        locked: a step is running, so no value may change.
        before_read: called before each read; a joining worker may have to receive the values first.
    """

    def __init__(self) -> None:
        self._values: dict[str, Any] = {}
        # Values with a state of their own: tensors, modules, schedules, optimizers.
        self._objects: dict[str, torch.Tensor | Stateful] = {}
        # States that arrived before the script created their object.
        self._waiting: dict[str, Any] = {}
        # What a state dict may lack: attributes of kept objects, since they were kept.
        self._attributes: dict[str, KeptAttributes] = {}
        self.locked = False
        self.before_read: Callable[[], None] = do_nothing

    def __getitem__(self, name: str) -> Any:
        self.before_read()
        return self._values[name]

    def __setitem__(self, name: str, value: object) -> None:
        self.check_unlocked()
        if not isinstance(name, str):
            raise BadInput(
                f"run.keep[{name!r}]: a name is a string",
                means="names are sent as JSON",
                do=f"use {str(name)!r}",
            )
        _refuse_unsuitable(value)
        if isinstance(value, torch.Tensor | Stateful):
            _check_value(name, value)
            if self._objects.get(name) is not value:
                self._attributes.pop(name, None)
                if has_attributes(value):
                    self._attributes[name] = KeptAttributes(value)
            if name in self._waiting:
                value = self._load_object(name, value, self._waiting.pop(name))
            self._values[name] = self._objects[name] = value
        else:
            frozen = _freeze(_check_value(name, value))
            self._waiting.pop(name, None)
            self._objects.pop(name, None)
            self._attributes.pop(name, None)
            self._values[name] = frozen

    def __delitem__(self, name: str) -> None:
        self.check_unlocked()
        del self._values[name]
        self._objects.pop(name, None)
        self._attributes.pop(name, None)

    def __iter__(self) -> Iterator[str]:
        self.before_read()
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def check_unlocked(self) -> None:
        """Refuse a change inside a step."""
        if self.locked:
            raise BadInput(
                "run.keep was changed inside a step",
                means="each worker runs the inner loop for different microbatches, so values would differ",
                do="change it between the steps, for example from step.loss or the sums of an evaluation",
            )

    def describe(self) -> tuple[dict[str, Any], dict[str, torch.Tensor]]:
        """Return all values as JSON, ``{"values": ..., "states": ...}``, and the tensors it refers to."""
        tensors: dict[str, torch.Tensor] = {}
        values = {name: value for name, value in self._values.items() if name not in self._objects}
        states = {name: self._read_object(name) for name in self._objects} | self._waiting
        described = {name: split_tensors(state, name, tensors) for name, state in states.items()}
        return {"values": to_json(values), "states": described}, tensors

    def _read_object(self, name: str) -> Any:
        """Return the state of an object, with its attributes beside the state dict if they have changed."""
        state = _read_state(self._objects[name])
        changed = self._attributes[name].describe_changed() if name in self._attributes else {}
        return {STATE: state, **changed} if changed else state

    def load(self, described: dict[str, Any], tensors: dict[str, torch.Tensor]) -> None:
        """Load the result of `describe` on another worker or in an earlier attempt; keep the tensors."""
        objects, self._objects = self._objects, {}
        self._values = {name: _freeze(value) for name, value in described["values"].items()}
        self._waiting = {}
        for name, encoded in described["states"].items():
            state = join_tensors(encoded, tensors)
            if name in objects:
                self._values[name] = self._objects[name] = self._load_object(name, objects[name], state)
            elif isinstance(state, torch.Tensor):
                self._values[name] = self._objects[name] = state
            else:
                self._waiting[name] = state

    def _load_object(
        self, name: str, stateful: "torch.Tensor | Stateful", state: Any
    ) -> "torch.Tensor | Stateful":
        """Load a state, and the attributes beside the state dict."""
        changed: dict[str, Any] = {}
        if isinstance(state, dict) and STATE in state:
            state, changed = state[STATE], state
        attributes = self._attributes.get(name)
        if attributes is not None:
            attributes.restore()
        loaded = _load_state(stateful, state)
        if attributes is not None and changed:
            attributes.load(changed)
        return loaded

    def list_tensors(self) -> list[torch.Tensor]:
        """Return the tensors themselves, and the parameters and buffers of the modules."""
        tensors: list[torch.Tensor] = []
        for stateful in self._objects.values():
            if isinstance(stateful, torch.Tensor):
                tensors.append(stateful)
            elif isinstance(stateful, torch.nn.Module):
                tensors += [*stateful.parameters(), *stateful.buffers()]
        return tensors

    def digest(self) -> str:
        """Return a `digest_text` of everything but the elements of tensors; empty without values."""
        if not self._values and not self._waiting:
            return ""
        described, _ = self.describe()
        return digest_text(to_json_text(described))


def _read_state(stateful: torch.Tensor | Stateful) -> Any:
    return stateful if isinstance(stateful, torch.Tensor) else stateful.state_dict()


@torch.no_grad()
def _load_state(stateful: torch.Tensor | Stateful, state: Any) -> torch.Tensor | Stateful:
    """Load a state, in place if possible: the script may have other references to the object."""
    if not isinstance(stateful, torch.Tensor):
        stateful.load_state_dict(restore_types(stateful.state_dict(), state))
        return stateful
    if isinstance(state, torch.Tensor) and (state.shape, state.dtype) == (stateful.shape, stateful.dtype):
        return stateful.copy_(state)
    return state.to(stateful.device) if isinstance(state, torch.Tensor) else stateful


def _check_value(name: str, value: object) -> Any:
    try:
        if isinstance(value, torch.Tensor | Stateful):
            return split_tensors(_read_state(value), name, {})
        return to_json(value)
    except (TypeError, ValueError) as error:
        raise BadInput(
            f"run.keep[{name!r}] cannot be given to a joining worker: {error}",
            means="only numbers, strings, lists, dicts, tensors and None can be sent; nothing is unpickled",
            do="keep numbers, tensors, modules, or an object with only such values in its state_dict()",
        ) from error


def _refuse_unsuitable(value: object) -> None:
    if isinstance(value, torch.Tensor) and value.grad_fn is not None:
        raise BadInput(
            "a tensor that is part of a computation cannot be in run.keep",
            means="all tensors from which it was computed would stay in memory",
            do="keep tensor.detach().clone()",
        )
    if callable(value) and not isinstance(value, Stateful):
        raise BadInput(
            f"{value!r} cannot be in run.keep",
            means="functions cannot be sent to joining workers",
            do="define it in the script",
        )


def _freeze(value: Any) -> Any:
    if isinstance(value, list):
        return tuple(map(_freeze, value))
    if isinstance(value, dict):
        return MappingProxyType({key: _freeze(entry) for key, entry in value.items()})
    return value
