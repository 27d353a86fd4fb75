"""The one way in which tests wait for something that has no event, however busy the machine is.

A test that can wait for an event (the end of a process, a pipe, a queue, an `asyncio.Event`) waits for that,
with `WAIT_S` as its limit. The limit is far beyond what a busy machine needs: only a failing test reaches it.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

WAIT_S = 120
POLL_S = 0.02
LOOKING = 0.1
"""The largest part of the time that looks may take, because others need the cores for what is waited for."""

Found = TypeVar("Found")


def pause(look_s: float = 0.0) -> None:
    """Sleep between two looks.

    Args:
        look_s: how long the last one took.
    """
    time.sleep(compute_pause(look_s))


def compute_pause(look_s: float) -> float:
    """Return the seconds between two looks, of which the last one took ``look_s``."""
    return max(POLL_S, look_s / LOOKING - look_s)


def wait_until(
    done: Callable[[], Found],
    what: str,
    *,
    state: Callable[[], object] | None = None,
    meanwhile: Callable[[], object] | None = None,
) -> Found:
    """Look again and again until a condition holds, and return what ``done`` has found.

    Args:
        done: returns something true once the condition holds.
        what: the condition in words, for the error.
        state: returns what is the case instead, for the error.
        meanwhile: is called between two looks; a test that drives what it waits for does so here.

    Raises:
        AssertionError: the condition does not hold within `WAIT_S`.
    """
    looked_s = time.monotonic()
    until_s = looked_s + WAIT_S
    while not (found := done()):
        now_s = time.monotonic()
        assert now_s < until_s, describe_wait(what, state)
        pause(now_s - looked_s) if meanwhile is None else meanwhile()
        looked_s = time.monotonic()
    return found


async def wait_until_async(
    done: Callable[[], Found | Awaitable[Found]], what: str, *, state: Callable[[], object] | None = None
) -> Found:
    """Do the same in an event loop, which goes on meanwhile; ``done`` may be a coroutine function."""
    until_s = time.monotonic() + WAIT_S
    while True:
        looked_s = time.monotonic()
        looked = done()
        found = await looked if isinstance(looked, Awaitable) else looked
        if found:
            return found
        now_s = time.monotonic()
        assert now_s < until_s, describe_wait(what, state)
        await asyncio.sleep(compute_pause(now_s - looked_s))


def describe_wait(what: str, state: Callable[[], object] | None) -> str:
    return f"waited {WAIT_S} s until {what}" + ("" if state is None else f":\n{state()}")
