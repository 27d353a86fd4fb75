"""The attempts of a run: from its start, or a resume, to the death of everything or its end."""

from collections.abc import Iterable, Sequence
from itertools import pairwise

import msgspec

from elastane.api.records import EventLine, LedgerLine

RESUMED, RESTORED = "run.resumed", "checkpoint.restored"


class Restored(msgspec.Struct, frozen=True):
    """What the workers of a new attempt have read of its checkpoint.

    Args:
        bytes: by all of them together.
        seconds: of the slowest; they read at the same time.
        workers: how many.
    """

    bytes: int
    seconds: float
    workers: int


class AttemptCost(msgspec.Struct, frozen=True, kw_only=True):
    """One attempt after the first.

    Args:
        checkpoint: it went on from.
        step: of the checkpoint.
        why: it was begun.
        lost_steps: steps that the attempt before had made after it, and that were made again.
        away_s: from the last word of the attempt before to the resume; None if it was not recorded.
        back_s: from the resume to the first new step; None if it made none.
        restored: None before any worker has read the checkpoint.
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
    """Every attempt after the first, in order."""
    starts = [number for number, event in enumerate(events) if event.kind == RESUMED]
    return tuple(
        _attempt(events[start:stop], ledger)
        for start, stop in pairwise([*starts, len(events)])
        if start < stop
    )


def _attempt(events: Sequence[EventLine], ledger: Sequence[LedgerLine]) -> AttemptCost:
    resumed = events[0]
    detail = resumed.detail
    step = _whole(detail.get("step", resumed.step))
    away_s = detail.get("away_s")
    return AttemptCost(
        checkpoint=str(detail.get("name") or resumed.why),
        step=step,
        why=resumed.why.partition(":")[0],
        lost_steps=_whole(detail.get("lost_steps")),
        away_s=float(away_s) if isinstance(away_s, int | float) else None,
        back_s=_back_s(events, step, ledger),
        restored=find_restored(events),
    )


def _back_s(events: Sequence[EventLine], step: int, ledger: Sequence[LedgerLine]) -> float | None:
    first = next((line for line in ledger if line.step == step + 1), None)
    began, ended = events[0].time, max(event.time for event in events)
    # The line of an attempt that went back further in a later one is the later one's.
    return first.time - began if first is not None and began <= first.time <= ended else None


def find_restored(events: Iterable[EventLine]) -> Restored | None:
    """What the events of one attempt say of it; None if nothing was read."""
    # A worker that has read twice, because another died meanwhile, counts once.
    each = {event.who: event.detail for event in events if event.kind == RESTORED}
    if not each:
        return None
    return Restored(
        sum(_whole(detail.get("bytes")) for detail in each.values()),
        max(float(detail.get("seconds") or 0.0) for detail in each.values()),
        len(each),
    )


def is_beginning(event: EventLine, step: int, attempts: Sequence[AttemptCost]) -> bool:
    """Whether an event at this step belongs to the begin of an attempt, not to a change in one."""
    return event.kind == "worker.joined" and step in {0, *(attempt.step for attempt in attempts)}


def _whole(value: float | str | None) -> int:
    return value if isinstance(value, int) else 0
