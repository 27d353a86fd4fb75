"""Hyperparameters that a user has edited between two attempts of a run, merged into those of a checkpoint.

A checkpoint has the values of its step. A value that the script begins with now, and did not begin with when
the run began, was edited: it replaces the value of the checkpoint. All others go on from the checkpoint.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from elastane.common.errors import BadInput

LR, INITIAL_LR = "lr", "initial_lr"
"""The rate of the next step and, with a schedule, the one from which the schedule computes it."""
REPEATED = {"base_lrs"}
"""Values of a schedule that a group has, too."""
LAST_EPOCH = "last_epoch"
"""The progress of a schedule."""


class EditedValue(NamedTuple):
    """A value with which a script began, and the one with which it begins now."""

    name: str
    was: Any
    now: Any

    def __str__(self) -> str:
        return f"{self.name} {self.now} (formerly {self.was})"


def merge_edits(
    began: Mapping[str, Any], now: Mapping[str, Any], saved: Mapping[str, Any]
) -> tuple[dict[str, Any], tuple[EditedValue, ...]]:
    """Return groups and schedule of a checkpoint with the edited values, and these.

    A learning rate is multiplied like the one from which it began, so a schedule goes on where it was.

    Args:
        began: ``groups`` and ``schedule`` as JSON, with which the script of the checkpoint began.
        now: the same of the present script.
        saved: the same of the checkpoint.
    """
    edits: list[EditedValue] = []
    versions = zip(began["groups"], now["groups"], saved["groups"], strict=True)
    groups = [_merge_group(*group, edits) for group in versions]
    was, at = began["schedule"], now["schedule"]
    if (was is None) != (at is None):
        names = {True: "none", False: "one"}
        edits.append(EditedValue("schedule", names[was is None], names[at is None]))
    schedule = _merge_schedule(was, at, saved["schedule"], edits)
    return {"groups": groups, "schedule": schedule}, tuple({str(edit): edit for edit in edits}.values())


def refuse_edits(edits: Sequence[EditedValue]) -> None:
    """Refuse values that the user has edited without a word.

    Raises:
        BadInput: there are some.
    """
    if edits:
        raise BadInput(
            f"the script begins with other values than when the run began: {'; '.join(map(str, edits))}",
            means="with them the resumed run trains other bytes",
            do="restore them, or add --accept-changes: the run then goes on with them",
        )


def _merge_group(
    began: Mapping[str, Any], now: Mapping[str, Any], saved: Mapping[str, Any], edits: list[EditedValue]
) -> dict[str, Any]:
    edited = {key for key in saved.keys() & began.keys() & now.keys() if began[key] != now[key]}
    merged = {key: now[key] if key in edited else value for key, value in saved.items()}
    rate = INITIAL_LR if INITIAL_LR in saved else LR
    if LR in saved:
        merged[LR] = _scale(saved[LR], began[rate], now[rate]) if rate in edited else saved[LR]
    edits += [EditedValue(key, began[key], now[key]) for key in sorted(edited - ({LR} - {rate}))]
    return merged


def _scale(rate: Any, was: Any, now: Any) -> Any:
    if rate == was or not was:
        return now
    return rate * (now / was)


def _merge_schedule(began: Any, now: Any, saved: Any, edits: list[EditedValue]) -> Any:
    """Merge the state of a schedule: names with an underscore are its progress, others its settings."""
    versions = began, now, saved
    if all(isinstance(version, list) for version in versions) and len({len(part) for part in versions}) == 1:
        return [_merge_schedule(*parts, edits) for parts in zip(*versions, strict=True)]
    if not all(isinstance(version, dict) for version in versions):
        return saved
    merged = dict(saved)
    for key in saved.keys() & began.keys() & now.keys():
        parts = saved[key] if isinstance(saved[key], list) else [saved[key]]
        if any(isinstance(part, dict) for part in parts):
            merged[key] = _merge_schedule(began[key], now[key], saved[key], edits)
        elif not key.startswith("_") and key != LAST_EPOCH and began[key] != now[key]:
            merged[key] = now[key]
            edits += [] if key in REPEATED else [EditedValue(key, began[key], now[key])]
    return merged
