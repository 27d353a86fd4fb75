"""Streams of events, as server-sent events."""

from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import AbstractContextManager, contextmanager
from http import HTTPStatus
from typing import Annotated

import anyio
import msgspec
from anyio import to_thread
from fastapi import APIRouter, Header, Query
from fastapi.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from elastane.cluster.controller.access.roles import Principal, Target
from elastane.cluster.controller.rest.caller import Caller, CallerParameter
from elastane.cluster.controller.rest.description import describe_route
from elastane.cluster.controller.rest.jobs import find_allowed_job
from elastane.cluster.controller.rest.parameters import EVENT, NameFilter
from elastane.cluster.controller.rest.problems import Refusal
from elastane.cluster.controller.rest.team_limits import read_limits
from elastane.cluster.controller.store import history, tokens
from elastane.cluster.nouns.history import Event

router = APIRouter(prefix="/v1", tags=["events"])

LOOK_S = 0.1
"""Interval of looks at a counter in memory. The database is read only if the counter has changed."""
BEAT_S = 15.0
AT_ONCE = 500
ALL = ("all", "")


class Watchers:
    """The number of open streams by token, user and team. Only the thread of the event loop may use it.

    Args:
        most_of_one: largest number with one token.
        most_of_user: largest number with all tokens of one user; None: only the other limits count.
    """

    def __init__(self, most: int, most_of_one: int, most_of_user: int | None = None) -> None:
        self._most, self._most_of_one = most, most_of_one
        self._most_of_user = most if most_of_user is None else most_of_user
        self._of = Counter[tuple[str, str]]()

    @contextmanager
    def count_stream(self, caller: Principal, most_of_team: int) -> Iterator[None]:
        """Count a stream while it is open; nothing is awaited between the check and the count."""
        limits = [
            (("token", caller.token), self._most_of_one),
            (("user", caller.user), self._most_of_user),
            *([(("team", caller.team), most_of_team)] if caller.team else []),
        ]
        for (kind, name), most in limits:
            if self._of[kind, name] >= most:
                raise Refusal(
                    HTTPStatus.TOO_MANY_REQUESTS,
                    f"{kind} {name} has {most} open streams already",
                    means="nothing was done; other clients are not affected",
                    do="end a stream, or share one: it has all events that the token may see",
                    headers={"Retry-After": "1"},
                )
        if self._of[ALL] >= self._most:
            raise Refusal(
                HTTPStatus.SERVICE_UNAVAILABLE,
                "too many streams are open",
                means="nothing was done",
                do="try again later, or poll /v1/jobs/JOB/events",
            )
        keys = Counter([ALL, *(key for key, _ in limits)])
        self._of += keys
        try:
            yield
        finally:
            self._of -= keys  # drops counts of zero


class EventStream(StreamingResponse):
    """A stream that counts as a watcher from before its first byte until after its last.

    Args:
        place: entered while the stream is open; if it raises a refusal, the answer is a problem.
    """

    def __init__(self, content: AsyncIterator[bytes], place: AbstractContextManager[None]) -> None:
        self._place = place
        super().__init__(
            content,
            media_type="text/event-stream",
            headers={"Cache-Control": "no-store", "X-Accel-Buffering": "no"},
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        with self._place:
            await super().__call__(scope, receive, send)


@router.get("/watch", **describe_route(str, media="text/event-stream"))
async def get_watch(
    caller: CallerParameter,
    job: NameFilter = "",
    after: Annotated[
        int | None, Query(ge=0, le=2**62, description="Begin after this event; by default with the next one.")
    ] = None,
    last_event_id: Annotated[
        str, Header(pattern=EVENT, description="As browsers send it; wins over `after`.")
    ] = "",
) -> StreamingResponse:
    """Stream events from now on or after a given one, of one `job` or all. A comment follows every 15 s."""
    begin = int(last_event_id) if last_event_id else after
    seen, most_of_team = await to_thread.run_sync(_find_begin, caller, job, begin)
    watchers: Watchers = caller.request.app.state.watchers
    return EventStream(_stream(caller, job, seen), watchers.count_stream(caller.principal, most_of_team))


def _find_begin(caller: Caller, job: str, begin: int | None) -> tuple[int, int]:
    """Return the number of the event to begin after, and the largest number of streams of the team."""
    with caller.begin_read() as tx:
        if job:
            find_allowed_job(tx, caller, job, "job.read")
        else:
            caller.require_right("events.read", Target(name="events", team=caller.principal.team))
        most_of_team = read_limits(tx, caller.principal.team).watchers
        return (history.find_newest_event(tx) if begin is None else begin), most_of_team


async def _stream(caller: Caller, job: str, seen: int) -> AsyncIterator[bytes]:
    store = caller.controller.store
    looked, beaten = -1, anyio.current_time()
    # It has a number, so that a client that reconnects before the first event continues from here.
    yield b"id: %d\n: from here on\n\n" % seen
    while not caller.request.app.state.closing.is_set():
        quiet = anyio.current_time() - beaten > BEAT_S
        if quiet or store.commits != looked:
            looked = store.commits
            found = await to_thread.run_sync(_list_new_events, caller, job, seen)
            if found is None:
                return
            for event in found:
                seen = event.id
                yield frame_event(event)
            if len(found) == AT_ONCE:
                looked = -1
        if quiet:
            beaten = anyio.current_time()
            yield b": still here\n\n"
        await anyio.sleep(LOOK_S)


def _list_new_events(caller: Caller, job: str, seen: int) -> tuple[Event, ...] | None:
    """Return the new events; None: the caller's token has become invalid, so the stream ends."""
    controller = caller.controller
    with controller.store.begin_read() as tx:
        if not tokens.is_token_valid(tx, caller.principal.token, controller.clock()):
            return None
        return history.list_events_after(tx, seen, AT_ONCE, teams=caller.teams, job=job)


def frame_event(event: Event) -> bytes:
    """Format one event as a server-sent event; its JSON has no line breaks."""
    return b"id: %d\nevent: %s\ndata: %s\n\n" % (event.id, event.kind.encode(), msgspec.json.encode(event))
