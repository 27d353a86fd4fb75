"""The attempts of a run, each from the start or a resume to its end."""

from collections.abc import Iterable, Sequence
from itertools import pairwise

import msgspec

from elastane.run.nouns.records import EventLine, LedgerLine

STARTED, RESUMED, RESTORED = "run.started", "run.resumed", "checkpoint.restored"


class Restored(msgspec.Struct, frozen=True):
    """The restore of a checkpoint by the workers of a new attempt.

    Args:
        bytes: bytes that all of them read together.
        seconds: duration for the slowest; they read at the same time.
        workers: how many have read it.
    """

    bytes: int
    seconds: float
    workers: int


class AttemptCost(msgspec.Struct, frozen=True, kw_only=True):
    """The cost of one attempt after the first.

    Args:
        checkpoint: from which it continued.
        step: of the checkpoint.
        lost_steps: steps of the previous attempt after that checkpoint, which were made again.
        away_s: seconds from the last record of the previous attempt to the resume; None: not recorded.
        back_s: seconds from the resume to the first new step; None: it made no step.
        restored: the restore; None before any worker has read the checkpoint.
    """

    checkpoint: str
    step: int
    why: str
    lost_steps: int = 0
    away_s: float | None = None
    back_s: float | None = None
    restored: Restored | None = None


def compute_attempt_costs(
    events: Sequence[EventLine], ledger: Sequence[LedgerLine]
) -> tuple[AttemptCost, ...]:
    """Return the costs of every attempt after the first, in order."""
    starts = [number for number, event in enumerate(events) if event.kind == RESUMED]
    return tuple(
        _compute_attempt_cost(events[start:stop], ledger)
        for start, stop in pairwise([*starts, len(events)])
        if start < stop
    )


def _compute_attempt_cost(events: Sequence[EventLine], ledger: Sequence[LedgerLine]) -> AttemptCost:
    resumed = events[0]
    detail = resumed.detail
    step = find_first_step(resumed)
    away_s = detail.get("away_s")
    return AttemptCost(
        checkpoint=str(detail.get("name") or resumed.why),
        step=step,
        why=resumed.why.partition(":")[0],
        lost_steps=_read_count(detail.get("lost_steps")),
        away_s=float(away_s) if isinstance(away_s, int | float) else None,
        back_s=_compute_back_s(events, step, ledger),
        restored=find_restored(events),
    )


def _compute_back_s(events: Sequence[EventLine], step: int, ledger: Sequence[LedgerLine]) -> float | None:
    first = next((line for line in ledger if line.step == step + 1), None)
    began, ended = events[0].time, max(event.time for event in events)
    # If a later attempt went back further, the line belongs to that one.
    return first.time - began if first is not None and began <= first.time <= ended else None


def find_restored(events: Iterable[EventLine]) -> Restored | None:
    """Return the restore that the events of one attempt record; None: no worker has read a checkpoint."""
    # A worker that read twice, because another one died meanwhile, counts once.
    each = {event.who: event.detail for event in events if event.kind == RESTORED}
    if not each:
        return None
    return Restored(
        sum(_read_count(detail.get("bytes")) for detail in each.values()),
        max(float(detail.get("seconds") or 0.0) for detail in each.values()),
        len(each),
    )


def is_beginning(event: EventLine, step: int, events: Sequence[EventLine]) -> bool:
    """Return whether an event at this step belongs to the beginning of an attempt, not to a change in it."""
    beginnings = (event for event in events if event.kind in (STARTED, RESUMED))
    return event.kind == "worker.joined" and step in {0, *map(find_first_step, beginnings)}


def find_first_step(beginning: EventLine) -> int:
    """Return the step after which an attempt began, by its event; 0: from nothing."""
    return _read_count(beginning.detail.get("step", beginning.step))


def _read_count(value: float | str | None) -> int:
    return value if isinstance(value, int) else 0
