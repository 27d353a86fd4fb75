"""Server-sent events: what happens, as it happens."""

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

from elastane.api.history import Event
from elastane.controller.access.roles import Principal, Target
from elastane.controller.rest.caller import Asking, Caller
from elastane.controller.rest.caps import read_limits
from elastane.controller.rest.description import says
from elastane.controller.rest.jobs import find_allowed_job
from elastane.controller.rest.parameters import EVENT, NameFilter
from elastane.controller.rest.problems import Refusal
from elastane.controller.store import events, tokens

router = APIRouter(prefix="/v1", tags=["events"])

LOOK_S = 0.1
"""A glance at a counter in memory; the database is asked only when it has moved."""
BEAT_S = 15.0
AT_ONCE = 500
ALL = ("all", "")


class Watchers:
    """Streams that are served, and for whom. For the thread of the event loop alone.

    Args:
        most: streams at one time.
        most_of_one: of them with one token.
        most_of_user: of them with all tokens of one user; None: only the other limits count.
    """

    def __init__(self, most: int, most_of_one: int, most_of_user: int | None = None) -> None:
        self._most, self._most_of_one = most, most_of_one
        self._most_of_user = most if most_of_user is None else most_of_user
        self._of = Counter[tuple[str, str]]()

    @contextmanager
    def one_more(self, caller: Principal, most_of_team: int) -> Iterator[None]:
        """Counts a stream while it lasts. Nothing is awaited between the look and the count.

        Args:
            caller: who watches.
            most_of_team: streams that its team may have; a token of no team has no such limit.

        Raises:
            Refusal: there are too many.
        """
        limits = [
            (("token", caller.token), self._most_of_one),
            (("user", caller.user), self._most_of_user),
            *([(("team", caller.team), most_of_team)] if caller.team else []),
        ]
        for (kind, name), most in limits:
            if self._of[kind, name] >= most:
                raise Refusal(
                    HTTPStatus.TOO_MANY_REQUESTS,
                    f"{kind} {name} watches {most} times already",
                    means="nothing was done; others are served meanwhile",
                    do="end a stream, or share one: it tells all that the token may see",
                    headers={"Retry-After": "1"},
                )
        if self._of[ALL] >= self._most:
            raise Refusal(
                HTTPStatus.SERVICE_UNAVAILABLE,
                "too many are watching already",
                means="nothing was done",
                do="try again later, or read /v1/jobs/JOB/events now and then",
            )
        keys = Counter([ALL, *(key for key, _ in limits)])
        self._of += keys
        try:
            yield
        finally:
            self._of -= keys  # which forgets whoever has none left


class EventStream(StreamingResponse):
    """A stream that has a place among the watchers from before its first byte until after its last.

    Args:
        content: of the stream.
        place: held meanwhile; it may be refused, and then a problem is the answer.
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


@router.get("/watch", **says(str, media="text/event-stream"))
async def get_watch(
    caller: Asking,
    job: NameFilter = "",
    after: Annotated[
        int | None, Query(ge=0, le=2**62, description="Begin after this event; by default with the next one.")
    ] = None,
    last_event_id: Annotated[
        str, Header(pattern=EVENT, description="As browsers send it; wins over `after`.")
    ] = "",
) -> StreamingResponse:
    """Events from now on, or from one that was seen; with `job`, its own only. A comment every 15 seconds."""
    begin = int(last_event_id) if last_event_id else after
    seen, most_of_team = await to_thread.run_sync(_find_begin, caller, job, begin)
    watchers: Watchers = caller.request.app.state.watchers
    return EventStream(_stream(caller, job, seen), watchers.one_more(caller.principal, most_of_team))


def _find_begin(caller: Caller, job: str, begin: int | None) -> tuple[int, int]:
    """Number of the event to begin after, and how many streams the team may have.

    Raises:
        NotAllowed: the caller may not watch.
    """
    with caller.reading() as tx:
        if job:
            find_allowed_job(tx, caller, job, "job.read")
        else:
            caller.must("events.read", Target(name="events", team=caller.principal.team))
        most_of_team = read_limits(tx, caller.principal.team).watchers
        return (events.find_newest_event(tx) if begin is None else begin), most_of_team


async def _stream(caller: Caller, job: str, seen: int) -> AsyncIterator[bytes]:
    store = caller.controller.store
    looked, beaten = -1, anyio.current_time()
    # With its number: whoever comes back before anything has happened goes on from here, not from then.
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
    """What has happened since; None: their token counts no more, so that they are told nothing."""
    controller = caller.controller
    with controller.store.reading() as tx:
        if not tokens.is_token_valid(tx, caller.principal.token, controller.clock()):
            return None
        return events.list_events_after(tx, seen, AT_ONCE, teams=caller.teams, job=job)


def frame_event(event: Event) -> bytes:
    """One event as the standard of server-sent events wants it; JSON has no line breaks."""
    return b"id: %d\nevent: %s\ndata: %s\n\n" % (event.id, event.kind.encode(), msgspec.json.encode(event))
