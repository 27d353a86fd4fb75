"""State as JSON can say it, and back into the types it had: nothing that travels is ever unpickled."""

import json
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType
from typing import Any, Protocol, runtime_checkable

import torch


@runtime_checkable
class Stateful(Protocol):
    """Whatever can say its state and take it again, as schedulers and scalers do."""

    def state_dict(self) -> dict[str, Any]: ...
    def load_state_dict(self, state_dict: dict[str, Any], /) -> object: ...


def said(value: object) -> Any:  # noqa: ANN401 - JSON has no narrower type
    """The value in lists, dicts, strings, numbers and None.

    One-element tensors become numbers; functions, which are the script's own and equal everywhere, None.

    Raises:
        TypeError: something in it is neither.
    """
    return json.loads(text(value))


def text(value: object) -> str:
    """What `said` says, as JSON in which equal values are equal text."""
    return json.dumps(value, default=_said, sort_keys=True)


def _said(value: object) -> Any:  # noqa: ANN401 - likewise
    if isinstance(value, torch.Tensor) and value.numel() == 1:
        return value.item()
    if isinstance(value, MappingProxyType):
        return dict(value)
    if callable(value):
        return None
    raise TypeError(f"{type(value).__name__} {value!r}")


def restored(mine: object, said: Any) -> Any:  # noqa: ANN401 - likewise
    """What was said, in the types that the same place holds in this process.

    JSON has no tuples, no keys that are numbers and no functions; ``mine`` knows where there are some
    (``betas``, the milestones of ``MultiStepLR``, the phases of ``SWALR``).
    """
    if said is None and callable(mine):
        return mine
    if isinstance(mine, Mapping) and isinstance(said, Mapping):
        named = _names(mine)
        entries = {named(key): restored(mine.get(named(key)), entry) for key, entry in said.items()}
        # What a Counter does not hold counts as zero, so it must remain one.
        return Counter(entries) if isinstance(mine, Counter) else entries
    if isinstance(mine, list | tuple) and isinstance(said, list):
        known: Iterable[object] = mine if len(mine) == len(said) else [None] * len(said)
        listed = [restored(one, entry) for one, entry in zip(known, said, strict=True)]
        return tuple(listed) if isinstance(mine, tuple) else listed
    return said


def _names(mine: Mapping[Any, object]) -> Callable[[str], Any]:
    numbers = bool(mine) and all(isinstance(key, int) for key in mine)
    return int if numbers else str
