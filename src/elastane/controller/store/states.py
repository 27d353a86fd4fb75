"""Jobs as the scheduler sees them. Pure."""

from typing import Any, NamedTuple

from sqlalchemy import Row

from elastane.api.cluster import Draining, Holding, JobState
from elastane.api.jobs import JobSpec
from elastane.api.usage import Use
from elastane.controller.observing import retried_at_s
from elastane.controller.store.records import Record, record_of, uses_of
from elastane.controller.store.rows import ENDS, cost
from elastane.scheduler.goodput import select_comparable_speeds


class Seen(NamedTuple):
    """A job as the scheduler sees it.

    Args:
        state: see `elastane.api.cluster.JobState`.
        wrong: what of its record cannot be read; empty: nothing.
        decidable: something can be decided about it.
        uncertain: it may hold devices, and nobody knows which.
    """

    state: JobState
    wrong: str = ""
    decidable: bool = True
    uncertain: bool = False


def seen_of(row: Row[Any], now_s: float) -> Seen:
    record = record_of(row)
    if record.unreadable:
        state = _held_back(row, record, now_s)
        return Seen(state or _held_back_of(row, record, (), now_s), record.unreadable, False, state is None)
    wrong, uses = record.guessed, uses_of(row)
    if uses is None:
        wrong = f"{wrong}; using: it cannot be read".removeprefix("; ")
    return Seen(_state_of(row, record, uses or (), now_s), wrong)


def _held_back(row: Row[Any], record: Record, now_s: float) -> JobState | None:
    """A job about which nothing can be decided, and whose devices are nobody else's.

    What it uses counts as on its way out, because nobody knows what it should have.

    Returns:
        None: nobody knows which devices it has.
    """
    if record.plain["state"] in {"queued", "paused"}:
        return _held_back_of(row, record, (), now_s)
    uses = uses_of(row)
    if uses is None or (not uses and record.plain["workers"]):
        return None
    draining = tuple(Draining(pool=use.pool, workers=use.devices, deadline_s=now_s) for use in uses)
    return _held_back_of(row, record, draining, now_s)


def _held_back_of(row: Row[Any], record: Record, draining: tuple[Draining, ...], now_s: float) -> JobState:
    return JobState(
        number=row.number,
        # A worker for each device: how many devices each takes nobody may know.
        spec=JobSpec(name=record.plain["name"], team=record.plain["team"]),
        submitted_s=now_s,
        draining=draining,
        ends="cancelled",
    )


def _state_of(row: Row[Any], record: Record, uses: tuple[Use, ...], now_s: float) -> JobState:
    """A job as the scheduler sees it.

    A job uses the larger of its grant and what was seen: workers beyond the grant drain, and hold their
    devices until they have been seen gone.
    """
    grant, observed, plain = record.grant, record.observed, record.plain
    holds, draining, successors = [], [], 0
    for pool in sorted(grant.workers.keys() | observed.held.keys()):
        granted = grant.workers.get(pool, 0)
        held = observed.held.get(pool)
        seen, leaving, absent, lost = (
            (held.workers, held.leaving, held.absent, held.lost) if held else (0, 0, 0, 0)
        )
        beyond = max(0, seen - granted)
        if beyond:
            # Those on nodes that go away are asked to leave first.
            draining.append(
                Draining(
                    pool=pool,
                    workers=beyond,
                    deadline_s=grant.drain_until_s,
                    leaving=min(beyond, leaving),
                )
            )
        missing = max(0, granted - (seen - absent))
        gone = min(missing, lost)
        failed = gone if observed.faulty_since_s is not None else 0
        successors += gone - failed
        if granted:
            holds.append(
                Holding(
                    pool=pool,
                    workers=granted,
                    leaving=min(granted, max(0, leaving - beyond)),
                    starting=missing - failed,
                    failed=failed,
                )
            )
    return JobState(
        number=row.number,
        spec=record.spec,
        submitted_s=plain["submitted_s"],
        holds=tuple(holds),
        draining=tuple(draining),
        started_s=plain["admitted_s"],
        resized_s=plain["resized_s"],
        setbacks=plain["setbacks"],
        promised=plain["promised"],
        starting_since_s=observed.starting_since_s,
        faulty_since_s=observed.faulty_since_s,
        successors=successors,
        retry_at_s=float(retried_at_s(plain["retry_at_s"], now_s)),
        speeds=select_comparable_speeds(observed.speeds, observed.brief),
        resize_s=observed.resize_s,
        unsaved_s=observed.unsaved_s,
        remaining=observed.remaining,
        spent=plain["spent"] + cost(uses, now_s - plain["using_since_s"]),
        ends=ENDS.get(plain["wanted"]),
    )
