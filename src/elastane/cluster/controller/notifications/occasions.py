"""The messages of a target: a pure function of the events and jobs of its team.

Each message has a key that is the same whenever it is computed, so that a target gets it once.
"""

from collections.abc import Iterable, Iterator

import msgspec

from elastane.cluster.controller.access.roles import EVERY_TEAM
from elastane.cluster.controller.jobs.accounts import compute_spending
from elastane.cluster.controller.jobs.stored_job import StoredJob
from elastane.cluster.controller.notifications.stored_target import Message, StoredTarget
from elastane.cluster.controller.notifications.wording import remove_markup
from elastane.cluster.nouns.history import Event
from elastane.cluster.nouns.notifications import Occasion
from elastane.common.durations import format_duration

ENDS = {"job.finished", "job.failed", "job.cancelled"}
LOSSES = {"job.shrunk", "job.moved", "job.preempted"}
WAITS_FROM = ("job.submitted", "job.resumed", "job.preempted", "job.stopping", "job.stopped")
"""The events from which on a job may be in the queue. The newest one counts."""


class WaitingJob(msgspec.Struct, frozen=True, kw_only=True):
    """A job in the queue, and the number of the event that its wait began with."""

    name: str
    team: str
    number: int
    event: int
    since_s: float


def covers(target: StoredTarget, team: str) -> bool:
    """Return whether the jobs of a team are among those of a target."""
    return bool(team) and target.team in (team, EVERY_TEAM)


def list_event_messages(target: StoredTarget, events: Iterable[Event]) -> Iterator[Message]:
    """Yield a message for each new event that the target wants to learn of."""
    for event in events:
        if event.id > target.last_event and event.job and covers(target, event.team):
            occasion = next((one for one in target.on if _is_of(event, one)), None)
            if occasion is not None:
                yield Message(
                    key=f"event:{event.id}",
                    on=_name_event(event, occasion),
                    job=event.job,
                    text=f"{remove_markup(event.message)} (team {event.team})",
                )


def _is_of(event: Event, occasion: Occasion) -> bool:
    match occasion.kind:
        case "failed":
            return event.kind == "job.failed"
        case "ended":
            return event.kind in ENDS
        case "reclaimed":
            return event.kind in LOSSES and event.detail.get("reclaimed") is True
        case "stuck" | "waits" | "budget":
            return False


def _name_event(event: Event, occasion: Occasion) -> str:
    return event.kind.removeprefix("job.") if occasion.kind == "ended" else occasion.name


def list_job_messages(target: StoredTarget, jobs: Iterable[StoredJob], now_s: float) -> Iterator[Message]:
    """Yield a message for each job that is stuck, or has spent a part of its budget."""
    for job in jobs:
        if covers(target, job.team) and not job.has_ended and not job.unreadable:
            for occasion in target.on:
                if (message := _judge_job(job, occasion, now_s)) is not None:
                    yield message


def _judge_job(job: StoredJob, occasion: Occasion, now_s: float) -> Message | None:
    match occasion.kind:
        case "stuck":
            since_s = find_last_progress(job)
            if since_s is None or now_s - since_s < occasion.limit:
                return None
            key = f"{occasion.name}:{job.number}:{job.observed.stepped_s:.0f}"
            words = (
                f"has made no step for {format_duration(now_s - since_s)}; its last is {job.observed.step}"
            )
        case "budget":
            budget, spent = job.spec.budget, compute_spending(job, now_s)
            if not budget or spent < budget * occasion.limit / 100:
                return None
            # A higher budget is another limit, which can be reached again.
            key = f"{occasion.name}:{job.number}:{budget:g}"
            words = f"has spent {spent:.2f} of its budget of {budget:g}"
        case _:
            return None
    return Message(key=key, on=occasion.name, job=job.name, text=f"{job.name} {words} (team {job.team})")


def find_last_progress(job: StoredJob) -> float | None:
    """Return when a running job last made progress, or began to be able to; None: that is not known.

    A job that has made no step at all may be one that reports none. After a resize, and after a crash, it
    gets the whole time again.
    """
    observed = job.observed
    if job.state != "running" or not observed.step or not observed.stepped_s or job.active_since_s is None:
        return None
    return max(observed.stepped_s, job.active_since_s, job.resized_s or 0.0, job.retry_at_s)


def list_wait_messages(
    target: StoredTarget, waiting: Iterable[WaitingJob], now_s: float
) -> Iterator[Message]:
    """Yield a message for each job that has been in the queue for a time that the target names."""
    limits = [occasion for occasion in target.on if occasion.kind == "waits"]
    for job in waiting:
        if covers(target, job.team):
            for occasion in limits:
                if now_s - job.since_s >= occasion.limit:
                    yield Message(
                        key=f"{occasion.name}:{job.number}:{job.event}",
                        on=occasion.name,
                        job=job.name,
                        text=f"{job.name} has waited in the queue for {format_duration(now_s - job.since_s)} "
                        f"(team {job.team})",
                    )
