"""The traces of one job: one of each resize and of each death, from events that are recorded anyway. Pure.

A resize lasts from the request, or from the decision if the scheduler had no request, to the first step with
the new number of workers. Its parts are the plan, the order to the coordinator of the run, the start of
processes by the agents, and the joins. A death lasts to the first step without the dead worker.

The controller records decisions, and the coordinator of each run its events; both have times. So a trace
needs nothing from the processes that it describes, and a restarted controller makes the same one again.
"""

from collections.abc import Mapping
from typing import TypeAlias

import msgspec

from elastane.cluster.nouns.history import Event
from elastane.common.safe_text import escape_line
from elastane.run.nouns.records import EventLine

WAITING_REQUESTS = ("job.submitted", "job.resumed")
"""Requests after which a job waits for its devices, however long that takes."""
OTHER_REQUESTS = ("job.scaled", "job.amended", "job.reprioritised")
ANSWERED_S = 60.0
"""Other requests lead to a decision within this time, or to none."""
ENDS = ("job.preempted", "job.stopping", "job.finished", "job.failed", "job.cancelled")
DECISIONS = ("job.started", "job.grown", "job.shrunk", "job.moved")
ORDERED = ("resize.requested", "run.started", "run.resumed")
"""Events of a run which show that it knows its new size."""
DEATHS = ("worker.died", "worker.hung")
MOST_WORKERS, MOST_DEATHS = 1024, 100
"""Of one change. Jobs write their events themselves, so further ones are left out."""
Attribute: TypeAlias = str | int | float | bool


class Span(msgspec.Struct, frozen=True):
    """A part of a trace.

    Args:
        name: for example ``join``.
        of: the worker, if there are several of this name.
    """

    name: str
    begin_s: float
    end_s: float
    attributes: Mapping[str, Attribute] = {}
    of: str = ""


class Trace(msgspec.Struct, frozen=True):
    """A change of a job.

    Args:
        key: in the whole cluster no other trace has it.
        root: all of it.
        parts: below ``root``.
        why: it did not reach its end; empty: it did.
    """

    key: str
    root: Span
    parts: tuple[Span, ...]
    why: str = ""


class Resize(msgspec.Struct, frozen=True):
    """A resize without a step at the new size so far.

    Args:
        requested_s: when it was requested; the time of the decision, if it was not.
        ordered_s: when the run knew of it; None: not yet.
        started, joined: by worker that was started for it, when it was, and when it was a member.
    """

    decision: Event
    requested_s: float
    workers: int
    ordered_s: float | None = None
    started: Mapping[int, float] = {}
    joined: Mapping[int, float] = {}


class JobTraces(msgspec.Struct, frozen=True):
    """The changes of a job that have not ended.

    Args:
        request: that waits for a decision; None: no request waits.
        deaths: records without a step after them so far.
    """

    job: str
    request: Event | None = None
    resize: Resize | None = None
    deaths: tuple[EventLine, ...] = ()


def add_cluster_event(traces: JobTraces, event: Event) -> tuple[JobTraces, tuple[Trace, ...]]:
    """Return the state after an event of the controller, and the traces that it ends."""
    if event.kind in WAITING_REQUESTS:
        return msgspec.structs.replace(traces, request=event), ()
    if event.kind in OTHER_REQUESTS:
        waits = traces.request is not None and traces.request.kind in WAITING_REQUESTS
        return (traces if waits else msgspec.structs.replace(traces, request=event)), ()
    if event.kind in ENDS:
        unfinished = _give_up_resize(traces, event.time_s, event.kind)
        return JobTraces(traces.job), unfinished
    if event.kind not in DECISIONS:
        return traces, ()
    unfinished = _give_up_resize(traces, event.time_s, "another decision")
    workers = event.detail.get("to")
    if not isinstance(workers, int):
        return msgspec.structs.replace(traces, request=None, resize=None), unfinished
    resize = Resize(event, _find_request_time(traces.request, event.time_s), workers)
    return msgspec.structs.replace(traces, request=None, resize=resize), unfinished


def _find_request_time(request: Event | None, decided_s: float) -> float:
    if request is None or (request.kind in OTHER_REQUESTS and request.time_s < decided_s - ANSWERED_S):
        return decided_s
    return min(request.time_s, decided_s)


def add_run_event(traces: JobTraces, line: EventLine) -> tuple[JobTraces, tuple[Trace, ...]]:
    """Return the state after the next event of the job's run, and the traces that it ends."""
    if line.kind in DEATHS:
        return msgspec.structs.replace(traces, deaths=(*traces.deaths, line)[:MOST_DEATHS]), ()
    ended: list[Trace] = []
    resize = traces.resize
    if resize is not None and line.time >= resize.decision.time_s:
        resize = _add_to_resize(resize, line)
        if line.kind == "generation.started" and len(line.workers) == resize.workers:
            ended.append(_end_resize(resize, line.time))
            resize = None
    deaths = traces.deaths
    if line.kind == "generation.started":
        ended += (_end_death(traces.job, death, line) for death in deaths)
        deaths = ()
    return msgspec.structs.replace(traces, resize=resize, deaths=deaths), tuple(ended)


def _add_to_resize(resize: Resize, line: EventLine) -> Resize:
    if line.kind in ORDERED and resize.ordered_s is None:
        return msgspec.structs.replace(resize, ordered_s=line.time)
    if line.kind == "worker.started":
        return msgspec.structs.replace(resize, started=_add_workers(resize.started, line))
    if line.kind == "worker.joined":
        return msgspec.structs.replace(resize, joined=_add_workers(resize.joined, line))
    return resize


def _add_workers(known: Mapping[int, float], line: EventLine) -> Mapping[int, float]:
    if len(known) + len(line.workers) > MOST_WORKERS:
        return known
    return dict.fromkeys(line.workers, line.time) | dict(known)


def _end_resize(resize: Resize, end_s: float, why: str = "") -> Trace:
    event = resize.decision
    before = event.detail.get("from")
    parts = [Span("plan", resize.requested_s, event.time_s)]
    # Clocks of machines differ: no part begins before the one that leads to it.
    known_s = event.time_s
    if resize.ordered_s is not None:
        known_s = max(known_s, resize.ordered_s)
        parts.append(Span("order", event.time_s, known_s))
    if resize.started:
        begun_s = max(known_s, *resize.started.values())
        parts.append(Span("agent", known_s, begun_s, {"elastane.workers.started": len(resize.started)}))
    for worker, begun_s in sorted(resize.started.items()):
        joined_s = max(begun_s, resize.joined.get(worker, end_s))
        name = f"worker {worker}"
        parts.append(Span("join", begun_s, joined_s, {"elastane.worker": name}, name))
    if not why:
        ready_s = max((known_s, *resize.started.values(), *resize.joined.values()))
        parts.append(Span("first step", min(ready_s, end_s), end_s))
    attributes: dict[str, Attribute] = {
        "elastane.job": event.job,
        "elastane.team": event.team,
        "elastane.change": event.kind.removeprefix("job."),
        "elastane.workers.before": before if isinstance(before, int) else 0,
        "elastane.workers.after": resize.workers,
        "elastane.why": escape_line(event.message),
    }
    root = Span("resize", resize.requested_s, max(end_s, event.time_s), attributes)
    return Trace(f"resize {event.job} {event.id} {event.time_s!r}", root, tuple(parts), why)


def _end_death(job: str, death: EventLine, line: EventLine) -> Trace:
    attributes: dict[str, Attribute] = {
        "elastane.job": job,
        "elastane.worker": escape_line(death.who),
        "elastane.why": escape_line(death.why),
        "elastane.workers.after": len(line.workers),
    }
    end_s = max(death.time, line.time)
    root = Span("death", death.time, end_s, attributes)
    # Workers have numbers that no other worker of the run gets.
    return Trace(f"death {job} {death.who} {death.time!r}", root, (Span("regroup", death.time, end_s),))


def _give_up_resize(traces: JobTraces, end_s: float, why: str) -> tuple[Trace, ...]:
    return () if traces.resize is None else (_end_resize(traces.resize, end_s, why),)
