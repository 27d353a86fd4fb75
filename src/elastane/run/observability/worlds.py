"""The worlds of a run of an unmodified script: when which workers ran, and how long none did. Pure."""

from collections.abc import Iterable, Sequence
from itertools import pairwise

import msgspec

from elastane.run.nouns.records import OUTCOMES, EventLine
from elastane.run.observability.attempts import RESUMED

STARTED = "generation.started"
FAILURES = frozenset({"worker.failed", "worker.hung"})
ENDS = frozenset({"stop.announced", *OUTCOMES})


class WorldSpan(msgspec.Struct, frozen=True):
    """One world: from the start of its processes to the announcement of their stop.

    Args:
        began_s: seconds since 1970.
        ended_s: seconds since 1970; that of the last event if the world still runs.
        workers: how many.
        first: no world of the same attempt came before.
    """

    began_s: float
    ended_s: float
    workers: int
    first: bool


class WorldFacts(msgspec.Struct, frozen=True, kw_only=True):
    """The most important numbers of a run of an unmodified script.

    Args:
        workers: fewest and most; None before the first start.
        starts: number of worlds.
        deaths: processes that were ended from outside.
        failures: of the script; of several processes that fail, each counts.
        longest_stop_s: the longest time from an announced stop to the next start; None without a restart.
        stopped_s: the sum of these times.
    """

    workers: tuple[int, int] | None
    starts: int
    deaths: int
    failures: int
    longest_stop_s: float | None
    stopped_s: float


def find_worlds(events: Sequence[EventLine]) -> list[WorldSpan]:
    """Return the worlds of a run in the order of their starts."""
    found: list[WorldSpan] = []
    open_world = resumed = False
    for event in events:
        resumed = resumed or event.kind == RESUMED
        if open_world:
            end_s = max(found[-1].began_s, event.time)
            found[-1] = msgspec.structs.replace(found[-1], ended_s=end_s)
        if event.kind == STARTED:
            first, resumed = resumed or not found, False
            found.append(WorldSpan(event.time, event.time, len(event.workers), first))
        open_world = event.kind == STARTED or (open_world and event.kind not in ENDS)
    return found


def list_stops_s(worlds: Iterable[WorldSpan]) -> list[float]:
    """Return how long no world ran before each restart within an attempt."""
    return [max(0.0, after.began_s - before.ended_s) for before, after in pairwise(worlds) if not after.first]


def collect_world_facts(events: Sequence[EventLine]) -> WorldFacts:
    worlds = find_worlds(events)
    sizes = [world.workers for world in worlds]
    stops_s = list_stops_s(worlds)
    return WorldFacts(
        workers=(min(sizes), max(sizes)) if sizes else None,
        starts=len(worlds),
        deaths=sum(event.kind == "worker.died" for event in events),
        failures=sum(event.kind in FAILURES for event in events),
        longest_stop_s=max(stops_s, default=None),
        stopped_s=sum(stops_s),
    )
