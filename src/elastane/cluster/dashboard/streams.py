"""Streams of a page: its parts again when they differ, as server-sent events."""

import time
from collections.abc import AsyncIterator, Callable, Mapping

import anyio
import msgspec
from anyio import to_thread
from starlette.responses import Response, StreamingResponse

from elastane.cluster.dashboard.feed import ClusterFeed
from elastane.cluster.dashboard.pages import draw_page, find_version, follows_run
from elastane.cluster.dashboard.run_page import RunFeed
from elastane.common.errors import ElastaneError

LOOK_S = 0.15
LEAST_S = 0.3
"""Least interval between two drawings of one page."""
FOLLOW_S = 0.7
"""Interval of drawings of a page that shows a run."""
BEAT_S = 15.0


def stream_page(
    feed: ClusterFeed | RunFeed, path: str, params: Mapping[str, str], is_over: Callable[[], bool]
) -> Response:
    """Return a stream with the parts of a page, and those that change, until the page is closed.

    Args:
        is_over: returns whether the session or the dashboard has ended.
    """
    return StreamingResponse(
        _stream(feed, path, dict(params), is_over),
        media_type="text/event-stream",
        headers={"Cache-Control": "no-store", "X-Accel-Buffering": "no"},
    )


async def _stream(
    feed: ClusterFeed | RunFeed, path: str, params: Mapping[str, str], is_over: Callable[[], bool]
) -> AsyncIterator[bytes]:
    sent: dict[str, str] = {}
    version, drawn_s, beaten_s = -1, -1e9, time.monotonic()
    longest_s = FOLLOW_S if follows_run(feed, path) else BEAT_S
    yield b"retry: 1000\n\n"
    while not is_over() and not feed.is_over:
        feed.touch()
        now_s = time.monotonic()
        since_s, latest = now_s - drawn_s, find_version(feed, path)
        if (since_s >= LEAST_S and latest != version) or since_s >= longest_s:
            version, drawn_s = latest, now_s
            try:
                parts = await to_thread.run_sync(draw_page, feed, path, params)
            except ElastaneError as error:
                yield frame("trouble", error.what)
                continue
            fresh = [part for part in parts if sent.get(part.name) != part.digest]
            if fresh:
                sent |= {part.name: part.digest for part in fresh}
                yield frame("parts", [(part.name, part.digest, part.html) for part in fresh])
        if now_s - beaten_s > BEAT_S:
            beaten_s = now_s
            yield b": still here\n\n"
        await anyio.sleep(LOOK_S)
    # The page loads again: it finds the sign-in, or another dashboard.
    yield frame("ended", feed.refusal)


def frame(kind: str, value: object) -> bytes:
    """Format a server-sent event; its JSON has no line breaks."""
    return b"event: %s\ndata: %s\n\n" % (kind.encode(), msgspec.json.encode(value))
