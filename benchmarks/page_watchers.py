"""Open pages of a dashboard without a browser: streams that note when a text arrives."""

import contextlib
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from types import TracebackType
from typing import Self

import httpx
import msgspec
from elastane.cluster.nouns.dashboard import DashboardReady, DashboardSettings

from processes import wait_until

WAIT_S = 120.0


@contextlib.contextmanager
def start_dashboard(settings: DashboardSettings) -> Iterator[DashboardReady]:
    """Start a dashboard in a process of its own."""
    reading, writing = os.pipe()
    with subprocess.Popen(
        [sys.executable, "-m", "elastane.cluster.dashboard", f"--ready-fd={writing}"],
        stdin=subprocess.PIPE,
        pass_fds=(writing,),
    ) as process:
        os.close(writing)
        assert process.stdin is not None
        process.stdin.write(msgspec.json.encode(settings))
        process.stdin.close()
        try:
            with os.fdopen(reading, "rb") as answer:
                yield msgspec.json.decode(answer.readline(), type=DashboardReady)
        finally:
            process.terminate()


def sign_in(ready: DashboardReady, token: str) -> dict[str, str]:
    """Return the cookies of a session; of a run with the key that its dashboard has made."""
    with httpx.Client(base_url=ready.url, timeout=WAIT_S) as client:
        if ready.key:
            client.get("/sign-in", params={"key": ready.key})
        else:
            client.post("/sign-in", data={"token": token})
        return dict(client.cookies)


class Watchers:
    """Streams of pages, each in a thread: ``with Watchers(...) as watchers:``.

    Args:
        ready: the dashboard.
        cookies: of a session.
        paths: the pages, one after the other for all watchers.
        count: of watchers.
    """

    def __init__(
        self, ready: DashboardReady, cookies: Mapping[str, str], paths: Sequence[str], count: int
    ) -> None:
        self._url, self._cookies = ready.url, dict(cookies)
        self._paths = [paths[number % len(paths)] for number in range(count)]
        self._ending = threading.Event()
        self._heard = [0.0] * count
        self._wanted = ""
        self._found: dict[int, float] = {}

    def __enter__(self) -> Self:
        for number in range(len(self._paths)):
            threading.Thread(target=self._watch, args=(number,), daemon=True).start()
        wait_until(lambda: all(self._heard), "all pages are open", WAIT_S)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ending.set()

    def expect(self, text: str) -> None:
        """Note from now on when each page gets this text."""
        self._found = {}
        self._wanted = text

    def wait_for_text(self) -> list[float]:
        """Return when each page has got the text, as `time.time`."""
        wait_until(lambda: len(self._found) == len(self._paths), "all pages have the text", WAIT_S)
        return sorted(self._found.values())

    def _watch(self, number: int) -> None:
        with (
            contextlib.suppress(httpx.HTTPError),
            httpx.stream(
                "GET", f"{self._url}/live{self._paths[number]}", cookies=self._cookies, timeout=WAIT_S
            ) as stream,
        ):
            for line in stream.iter_lines():
                self._heard[number] = time.time()
                if self._wanted and self._wanted in line and number not in self._found:
                    self._found[number] = time.time()
                if self._ending.is_set():
                    return
