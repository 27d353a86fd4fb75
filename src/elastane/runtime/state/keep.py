"""What a script keeps from step to step; it travels to joiners with all other state."""

import hashlib
from collections.abc import Iterator, MutableMapping
from types import MappingProxyType
from typing import Any

import torch

from elastane.api.errors import BadInput
from elastane.runtime.state.plain import Stateful, restored, said, text


class Keep(MutableMapping[str, Any]):
    """The script's own values by name: what JSON can say, or objects whose ``state_dict`` JSON can say.

    Changed between steps only, and alike on all workers, which their votes check. Lists are kept as tuples
    and dicts read-only, so that no change goes unnoticed.

    Attributes:
        locked: a step is under way; nothing may be changed.
    """

    def __init__(self) -> None:
        self._values: dict[str, Any] = {}
        # Those of them that say their own state.
        self._objects: dict[str, Stateful] = {}
        # States that have arrived before this script has made the object they belong to.
        self._waiting: dict[str, Any] = {}
        self.locked = False

    def __getitem__(self, name: str) -> Any:  # noqa: ANN401 - the script's own
        return self._values[name]

    def __setitem__(self, name: str, value: object) -> None:
        self.must_be_open()
        if not isinstance(name, str):
            raise BadInput(
                f"run.keep[{name!r}]: a name is a string", means="it travels as JSON", do=f"use {str(name)!r}"
            )
        if isinstance(value, Stateful):
            _checked(name, value.state_dict())
            if name in self._waiting:
                value.load_state_dict(restored(value.state_dict(), self._waiting.pop(name)))
            self._values[name] = self._objects[name] = value
        else:
            kept = _frozen(_checked(name, _number(value)))
            self._waiting.pop(name, None)
            self._objects.pop(name, None)
            self._values[name] = kept

    def __delitem__(self, name: str) -> None:
        self.must_be_open()
        del self._values[name]
        self._objects.pop(name, None)

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def must_be_open(self) -> None:
        """Called before anything kept is changed.

        Raises:
            BadInput: a step is under way.
        """
        if self.locked:
            raise BadInput(
                "what the run keeps was changed inside a step",
                means="the inner loop runs for other microbatches on every worker, so they would differ",
                do="change it between steps, from step.loss or the sums of an evaluation",
            )

    def said(self) -> dict[str, Any]:
        """All of it, for JSON: ``{"values": ..., "states": ...}``."""
        return said(self._all())  # type: ignore[no-any-return]

    def take(self, there: dict[str, Any]) -> None:
        """Become what `said` says of another worker's, or of an earlier run."""
        mine, self._objects = self._objects, {}
        self._values = {name: _frozen(value) for name, value in there["values"].items()}
        self._waiting = {}
        for name, state in there["states"].items():
            if name in mine:
                mine[name].load_state_dict(restored(mine[name].state_dict(), state))
                self._values[name] = self._objects[name] = mine[name]
            else:
                self._waiting[name] = state

    def digest(self) -> str:
        """The first 8 bytes of its SHA-256, in hexadecimal; empty if nothing is kept."""
        if not self._values and not self._waiting:
            return ""
        return hashlib.sha256(text(self._all()).encode()).hexdigest()[:16]

    def _all(self) -> dict[str, Any]:
        values = {name: kept for name, kept in self._values.items() if name not in self._objects}
        states = {name: kept.state_dict() for name, kept in self._objects.items()}
        return {"values": values, "states": {**states, **self._waiting}}


def _checked(name: str, value: object) -> Any:  # noqa: ANN401 - JSON has no narrower type
    try:
        return said(value)
    except (TypeError, ValueError) as error:
        raise BadInput(
            f"run.keep[{name!r}] cannot be given to a joining worker: {error}",
            means="only numbers, strings, lists, dicts and None travel; nothing is unpickled",
            do="keep numbers, or an object whose state_dict() has nothing else",
        ) from error


def _number(value: object) -> object:
    if isinstance(value, torch.Tensor) and value.numel() == 1:
        return value.item()
    if callable(value):
        raise BadInput(
            f"{value!r} cannot be kept", means="a function does not travel", do="define it in the script"
        )
    return value


def _frozen(value: Any) -> Any:  # noqa: ANN401 - likewise
    if isinstance(value, list):
        return tuple(map(_frozen, value))
    if isinstance(value, dict):
        return MappingProxyType({key: _frozen(entry) for key, entry in value.items()})
    return value
