"""Callbacks that change attributes, such as counters, which a worker that joins does not receive."""

from collections import deque
from collections.abc import Iterator
from typing import Any

from transformers.trainer_callback import ExportableState


class CallbackWatch:
    """Finds the callbacks that change attributes which no worker sends to one that joins.

    They cannot be sent as they are: some callbacks count on one worker only, and some keep times, so the
    values may differ between workers. An ``ExportableState`` names the attributes that are equal everywhere.

    Args:
        callbacks: the callbacks of a Trainer, after the event of its beginning.
    """

    def __init__(self, callbacks: list[Any]) -> None:
        watched = [each for each in callbacks if not isinstance(each, ExportableState)]
        self._watched = [(each, describe_attributes(each)) for each in watched]

    def find_changed(self) -> Iterator[tuple[str, str]]:
        """Yield the class of each callback that has changed, once, and the name of a changed attribute."""
        unchanged = []
        for callback, before in self._watched:
            after = describe_attributes(callback)
            changed = sorted(name for name, text in after.items() if before.get(name) != text)
            if changed:
                yield type(callback).__name__, changed[0]
            else:
                unchanged.append((callback, before))
        self._watched = unchanged


def describe_attributes(callback: Any) -> dict[str, str]:
    """Return each attribute as text: a number as its value, a container as its length, others as a type."""
    return {name: _describe(value) for name, value in getattr(callback, "__dict__", {}).items()}


def _describe(value: object) -> str:
    if isinstance(value, bool | int | float | str | None):
        return repr(value)
    kind = type(value).__name__
    return f"{kind} of {len(value)}" if isinstance(value, list | tuple | dict | set | deque) else kind


def build_change_warning(kind: str, attribute: str) -> str:
    """Return the warning about a callback that has changed."""
    return (
        f"the callback {kind} changes its attribute {attribute}, and a worker that joins or resumes begins "
        f"with its first value. To go on from the last one, derive {kind} from TrainerCallback and "
        f"ExportableState (of transformers.trainer_callback), and return {attribute} from its state()"
    )
