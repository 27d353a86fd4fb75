"""Which messages are sent now, and what follows from an attempt to send some. Pure."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Literal, TypeAlias

import msgspec

from elastane.cluster.controller.notifications.stored_target import StoredNotification, StoredTarget
from elastane.cluster.controller.notifications.wording import choose_fitting

FIRST_PAUSE_S, LONGEST_PAUSE_S = 10.0, 3600.0
"""Pauses after the first failure of a target, and after many; each is twice the one before."""
GIVEN_UP_S = 24 * 3600.0
"""A message that could not be sent for this long is given up with the next failure."""
AT_ONCE, OF_ONE_TEAM = 4, 2
"""Attempts at one time, and those for the targets of one team: slow ones do not hold up the others."""
MOST_WAITING = 200
"""Messages of one target that may wait; further ones are left out, and only counted."""

Result: TypeAlias = Literal["sent", "failed", "unknown"]


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """The outcome of an attempt.

    Args:
        result: ``unknown``: the message may have arrived, because the attempt ended without a trace, or the
            service did not answer.
        why: why it failed, in words of ours: those of a service may contain its URL.
        left_out: number of dropped messages that the message has named.
    """

    result: Result
    why: str = ""
    left_out: int = 0


class MessageBatch(msgspec.Struct, frozen=True, kw_only=True):
    target: StoredTarget
    messages: tuple[StoredNotification, ...]


def choose_batches(
    targets: Iterable[StoredTarget],
    waiting: Mapping[str, Sequence[StoredNotification]],
    busy: Iterable[StoredTarget],
    now_s: float,
) -> tuple[MessageBatch, ...]:
    """Return the attempts that begin now. The message that waits for longest comes first.

    ``waiting`` has the oldest first, by id of the target; ``busy`` are targets of attempts that go on.
    """
    teams = Counter(target.team for target in busy)
    taken = {target.id for target in busy}
    free = AT_ONCE - len(taken)
    due = [
        target
        for target in targets
        if waiting.get(target.id) and target.id not in taken and target.retry_at_s <= now_s
    ]
    batches: list[MessageBatch] = []
    for target in sorted(due, key=lambda target: waiting[target.id][0].id):
        if len(batches) < free and teams[target.team] < OF_ONE_TEAM:
            teams[target.team] += 1
            messages = tuple(choose_fitting(waiting[target.id], target.left_out))
            batches.append(MessageBatch(target=target, messages=messages))
    return tuple(batches)


def apply_outcome(target: StoredTarget, outcome: Outcome, now_s: float) -> StoredTarget:
    """Return a target after an attempt."""
    match outcome.result:
        case "sent":
            left_out = max(0, target.left_out - outcome.left_out)
            return msgspec.structs.replace(
                target, failures=0, retry_at_s=0.0, why="", sent_s=now_s, left_out=left_out
            )
        case "failed" | "unknown":
            failures = target.failures + 1
            pause_s = min(LONGEST_PAUSE_S, FIRST_PAUSE_S * 2 ** min(failures - 1, 30))
            return msgspec.structs.replace(
                target, failures=failures, retry_at_s=now_s + pause_s, why=outcome.why
            )


def record_result(entry: StoredNotification, outcome: Outcome, now_s: float) -> StoredNotification:
    """Return a message after the attempt that was to send it."""
    match outcome.result:
        case "sent":
            return msgspec.structs.replace(entry, state="sent", ended_s=now_s)
        case "failed" | "unknown" if now_s >= entry.made_s + GIVEN_UP_S:
            return msgspec.structs.replace(entry, state="given-up", ended_s=now_s)
        case "failed" | "unknown":
            again = entry.again or outcome.result == "unknown"
            return msgspec.structs.replace(entry, state="waiting", batch="", again=again)
