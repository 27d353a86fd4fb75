"""The groups of an optimizer at the end of a run, for the card."""

from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

MOST_NAMES = 3
MOST_GROUPS = 20
PARAMETERS = "params"


class OptimizerGroups(msgspec.Struct, frozen=True):
    """``optimizer.json``: the class and the groups of an optimizer.

    Args:
        optimizer: name of its class.
        groups: the hyperparameters of each group, and the names of its ``params``.
    """

    optimizer: str
    groups: tuple[dict[str, Any], ...]


def find_shared_values(groups: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return the hyperparameters that are the same in all groups."""
    first = groups[0] if groups else {}
    return {
        key: value
        for key, value in first.items()
        if key != PARAMETERS and all(key in group and group[key] == value for group in groups)
    }


def list_group_rows(groups: Sequence[dict[str, Any]]) -> Iterable[tuple[str, ...]]:
    """Yield a header, then one row per group: its parameters, and the hyperparameters that differ."""
    shared = find_shared_values(groups)
    keys = list(dict.fromkeys(key for group in groups for key in group if key not in shared))
    differing = [key for key in keys if key != PARAMETERS]
    yield ("group", "parameters", *differing)
    for number, group in enumerate(groups[:MOST_GROUPS]):
        cells = (format_optimizer_value(group[key]) if key in group else "" for key in differing)
        yield (f"{number}", format_parameter_names(group.get(PARAMETERS)), *cells)


def format_parameter_names(names: object) -> str:
    """Return how many parameters a group has, and the first of their names."""
    if not isinstance(names, list):
        return ""
    shown = ", ".join(str(name) for name in names[:MOST_NAMES])
    more = f" and {len(names) - MOST_NAMES} more" if len(names) > MOST_NAMES else ""
    return f"{len(names)}: {shown}{more}" if names else "0"


def format_optimizer_value(value: object) -> str:
    """Return a hyperparameter in readable form."""
    if isinstance(value, list | tuple):
        return f"({', '.join(format_optimizer_value(part) for part in value)})"
    return f"{value:.6g}" if isinstance(value, float) else f"{value}"
