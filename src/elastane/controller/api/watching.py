"""Server-sent events: what happens, as it happens."""

from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from http import HTTPStatus
from typing import Annotated

import anyio
import msgspec
from anyio import to_thread
from fastapi import APIRouter, Header, Query
from fastapi.responses import StreamingResponse

from elastane.api.wire import Event
from elastane.controller.access.roles import Target
from elastane.controller.api.caller import Asking, Caller
from elastane.controller.api.description import says
from elastane.controller.api.jobs import allowed_job
from elastane.controller.api.parameters import EVENT, NameFilter
from elastane.controller.api.problems import Refusal
from elastane.controller.store import events, tokens

router = APIRouter(prefix="/v1", tags=["events"])

LOOK_S = 0.1
"""A glance at a counter in memory; the database is asked only when it has moved."""
BEAT_S = 15.0
AT_ONCE = 500


class Watchers:
    """Streams that are served, and for whom. Not for several threads.

    Args:
        most: at one time.
        most_of_one: of them for one token, so that it leaves some to others.
    """

    def __init__(self, most: int, most_of_one: int) -> None:
        self._most = most
        self._most_of_one = most_of_one
        self._of = Counter[str]()

    def check(self, token: str) -> None:
        """Goes on if there may be one more.

        Raises:
            Refusal: there are too many.
        """
        if self._of[token] >= self._most_of_one:
            raise Refusal(
                HTTPStatus.TOO_MANY_REQUESTS,
                f"token {token} watches {self._most_of_one} times already",
                means="nothing was done; others are served meanwhile",
                do="end a stream, or share one: it tells all that the token may see",
                headers={"Retry-After": "1"},
            )
        if self._of.total() >= self._most:
            raise Refusal(
                HTTPStatus.SERVICE_UNAVAILABLE,
                "too many are watching already",
                means="nothing was done",
                do="try again later, or read /v1/jobs/JOB/events now and then",
            )

    @contextmanager
    def one_more(self, token: str) -> Iterator[None]:
        """While it lasts."""
        self._of[token] += 1
        try:
            yield
        finally:
            self._of -= Counter([token])  # which forgets a token that has none left


@router.get("/watch", **says(str, media="text/event-stream"))
async def watch(
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
    seen = await to_thread.run_sync(_begun, caller, job, begin)
    watchers: Watchers = caller.request.app.state.watchers
    watchers.check(caller.principal.token)
    return StreamingResponse(
        _stream(caller, job, seen, watchers),
        media_type="text/event-stream",
        headers={"Cache-Control": "no-store", "X-Accel-Buffering": "no"},
    )


def _begun(caller: Caller, job: str, begin: int | None) -> int:
    """Number of the event to begin after, once it is certain that the caller may watch."""
    with caller.reading() as tx:
        if job:
            allowed_job(tx, caller, job, "job.read")
        else:
            caller.must("events.read", Target(name="events", team=caller.principal.team))
        return events.newest(tx) if begin is None else begin


async def _stream(caller: Caller, job: str, seen: int, watchers: Watchers) -> AsyncIterator[bytes]:
    store = caller.controller.store
    with watchers.one_more(caller.principal.token):
        looked, beaten = -1, anyio.current_time()
        # With its number: whoever comes back before anything has happened goes on from here, not from then.
        yield b"id: %d\n: from here on\n\n" % seen
        while not caller.request.app.state.closing.is_set():
            quiet = anyio.current_time() - beaten > BEAT_S
            if quiet or store.commits != looked:
                looked = store.commits
                found = await to_thread.run_sync(_after, caller, job, seen)
                if found is None:
                    return
                for event in found:
                    seen = event.id
                    yield framed(event)
                if len(found) == AT_ONCE:
                    looked = -1
            if quiet:
                beaten = anyio.current_time()
                yield b": still here\n\n"
            await anyio.sleep(LOOK_S)


def _after(caller: Caller, job: str, seen: int) -> tuple[Event, ...] | None:
    """What has happened since; None: their token counts no more, so that they are told nothing."""
    controller = caller.controller
    with controller.store.reading() as tx:
        if not tokens.counts(tx, caller.principal.token, controller.clock()):
            return None
        return events.after(tx, seen, AT_ONCE, teams=caller.teams, job=job)


def framed(event: Event) -> bytes:
    """One event as the standard of server-sent events wants it; JSON has no line breaks."""
    return b"id: %d\nevent: %s\ndata: %s\n\n" % (event.id, event.kind.encode(), msgspec.json.encode(event))
