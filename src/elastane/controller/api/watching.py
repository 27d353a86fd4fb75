"""Server-sent events: what happens, as it happens."""

from collections.abc import AsyncIterator
from http import HTTPStatus
from typing import Annotated

import anyio
import msgspec
from anyio import to_thread
from fastapi import APIRouter, Header, Query, Request
from fastapi.responses import StreamingResponse

from elastane.api.wire import Event
from elastane.controller.access.roles import Target
from elastane.controller.api.caller import Asking, Caller, authenticated
from elastane.controller.api.context import Controller
from elastane.controller.api.description import says
from elastane.controller.api.jobs import allowed_job
from elastane.controller.api.parameters import EVENT, NameFilter
from elastane.controller.api.problems import Refusal
from elastane.controller.store import events

router = APIRouter(prefix="/v1", tags=["events"])

LOOK_S = 0.1
"""A glance at a counter in memory; the database is asked only when it has moved."""
BEAT_S = 15.0
AT_ONCE = 500


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
    watchers = caller.request.app.state.watchers
    if watchers.borrowed_tokens >= caller.controller.settings.watchers:
        raise Refusal(
            HTTPStatus.SERVICE_UNAVAILABLE,
            "too many are watching already",
            means="nothing was done",
            do="try again later, or read /v1/jobs/JOB/events now and then",
        )
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


async def _stream(
    caller: Caller, job: str, seen: int, watchers: anyio.CapacityLimiter
) -> AsyncIterator[bytes]:
    store = caller.controller.store
    async with watchers:
        looked, beaten = -1, anyio.current_time()
        # With its number: whoever comes back before anything has happened goes on from here, not from then.
        yield b"id: %d\n: from here on\n\n" % seen
        while not caller.request.app.state.closing.is_set():
            if store.commits != looked:
                looked = store.commits
                found = await to_thread.run_sync(_after, caller, job, seen)
                for event in found:
                    seen = event.id
                    yield framed(event)
                if len(found) == AT_ONCE:
                    looked = -1
            if anyio.current_time() - beaten > BEAT_S:
                beaten = anyio.current_time()
                if not await to_thread.run_sync(_still_allowed, caller.controller, caller.request):
                    return
                yield b": still here\n\n"
            await anyio.sleep(LOOK_S)


def _after(caller: Caller, job: str, seen: int) -> tuple[Event, ...]:
    with caller.controller.store.reading() as tx:
        return events.after(tx, seen, AT_ONCE, teams=caller.teams, job=job)


def _still_allowed(controller: Controller, request: Request) -> bool:
    """A token that was revoked ends its streams too."""
    try:
        authenticated(controller, request.headers.get("authorization", ""), "a watcher", controller.clock())
    except Refusal as refusal:
        return refusal.status != HTTPStatus.UNAUTHORIZED
    return True


def framed(event: Event) -> bytes:
    """One event as the standard of server-sent events wants it; JSON has no line breaks."""
    return b"id: %d\nevent: %s\ndata: %s\n\n" % (event.id, event.kind.encode(), msgspec.json.encode(event))
