"""A time limit for calls that may hang: a network file system blocks until its server is back."""

import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

T = TypeVar("T")


class NotAnswered(Exception):
    """A call has not returned within its time."""


class TimeLimit:
    """Runs one call at a time, each in a thread of its own, and stops waiting for it after a while.

    A call that hangs goes on in the background; until it returns, the next one is not started.
    """

    def __init__(self) -> None:
        self._busy = threading.Lock()

    def call(self, function: Callable[[], T], within_s: float) -> T:
        """Return the result of a function, or raise its error.

        Raises:
            NotAnswered: it has not returned within so much time, or an earlier call has not.
        """
        give_up = time.monotonic() + within_s
        if not self._busy.acquire(timeout=max(0.0, within_s)):
            raise NotAnswered
        outcome: Future[T] = Future()

        def run() -> None:
            try:
                outcome.set_result(function())
            except BaseException as error:  # noqa: BLE001 - the caller gets every error
                outcome.set_exception(error)
            finally:
                self._busy.release()

        try:
            threading.Thread(target=run, name="elastane-claims", daemon=True).start()
        except BaseException:
            self._busy.release()
            raise
        try:
            return outcome.result(timeout=max(0.0, give_up - time.monotonic()))
        except TimeoutError:
            # It may have returned just now, and its own error may be a TimeoutError too.
            if outcome.done():
                return outcome.result()
            raise NotAnswered from None
