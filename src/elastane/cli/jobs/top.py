"""``elastane top``: a live view of the pools and jobs of the cluster."""

import os
import select
import sys
import termios
import time
import tty
from collections.abc import Callable, Iterator
from itertools import chain, islice
from types import TracebackType
from typing import TYPE_CHECKING, Annotated, Any, Self

import msgspec

from elastane.cli.command import AsJson, open_console, print_json
from elastane.cli.options import option
from elastane.cluster.client.context import connect
from elastane.cluster.nouns.controller import HealthProblem
from elastane.cluster.nouns.job_records import State
from elastane.cluster.nouns.rest import JobSummary
from elastane.cluster.nouns.usage import Occupancy
from elastane.common.connections.controller_context import find_context

if TYPE_CHECKING:
    from rich.console import Console

    from elastane.cluster.client.cluster import Cluster


ORDER: tuple[State, ...] = ("running", "queued", "paused")
PLAIN_ROWS = 1000


class ClusterView(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """State of the cluster at one time, as far as the token may see it.

    Args:
        time_s: seconds since 1970.
        pools: with the devices that all teams use.
        jobs: running jobs, then queued jobs, then paused jobs; newest first.
        more: the cluster has further jobs.
        failing: the controller cannot plan, or cannot store its plans; jobs continue unchanged.
        problems: the reasons why it is failing.
    """

    time_s: float
    pools: tuple[Occupancy, ...]
    jobs: tuple[JobSummary, ...]
    more: bool
    failing: bool
    problems: tuple[HealthProblem, ...] = ()


def top(
    *,
    team: Annotated[str, option("TEAM", "Only jobs of this team.")] = "",
    every: Annotated[float, option("SECONDS", "Seconds between updates.", min=0.2)] = 1.0,
    as_json: AsJson = False,
) -> None:
    """Show the pools and jobs of the cluster, live; q or Ctrl-C ends it.

    Without a terminal or with --json, the command prints them once.

    With --json, an object with the keys timeS, pools, jobs, more, failing and
    problems.
    """
    with connect() as cluster:
        if as_json:
            print_json(read_view(cluster, team, PLAIN_ROWS))
            return
        console, url = open_console(), find_context().url
        if not console.is_terminal:
            print_view(console, read_view(cluster, team, PLAIN_ROWS))
            return
        run_live(console, url, lambda: read_view(cluster, team, console.height), every)


def read_view(cluster: "Cluster", team: str, rows: int) -> ClusterView:
    """Return the pools and at most ``rows`` jobs."""
    found = list(islice(_list_in_order(cluster, team), rows + 1))
    health = cluster.health()
    return ClusterView(
        time_s=time.time(),
        pools=cluster.occupancy(),
        jobs=tuple(found[:rows]),
        more=len(found) > rows,
        failing=health.status == "failing",
        problems=health.problems,
    )


def _list_in_order(cluster: "Cluster", team: str) -> Iterator[JobSummary]:
    return chain.from_iterable(cluster.jobs.list(team=team, states=(state,)) for state in ORDER)


def print_view(console: "Console", sight: ClusterView) -> None:
    from rich.text import Text

    from elastane.cli.jobs.job_display import list_health_lines
    from elastane.cli.jobs.screen import render_jobs, render_pools
    from elastane.cli.tables import print_wide

    for line in list_health_lines(sight.problems, sight.time_s) if sight.failing else ():
        print_wide(console, line)
    for part in (render_pools(sight), Text(), render_jobs(sight)):
        print_wide(console, part)


def run_live(console: "Console", url: str, read: Callable[[], ClusterView], every_s: float) -> None:
    """Update the screen every ``every_s`` seconds until the user presses q."""
    from rich.live import Live

    from elastane.cli.jobs.screen import render_screen

    with Keys() as keys, Live(console=console, screen=True, auto_refresh=False) as view:
        while True:
            view.update(render_screen(read(), url, console.width, console.height), refresh=True)
            if keys.read_key(every_s) in ("q", "Q"):
                return


class Keys:
    """Context in which the terminal delivers keys at once, without echo; no keys without a terminal."""

    def __init__(self) -> None:
        self._fd = sys.stdin.fileno() if sys.stdin.isatty() else None
        self._before: list[Any] = []

    def __enter__(self) -> Self:
        if self._fd is not None:
            self._before = termios.tcgetattr(self._fd)
            tty.setcbreak(self._fd)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._fd is not None:
            termios.tcsetattr(self._fd, termios.TCSADRAIN, self._before)

    def read_key(self, timeout_s: float) -> str:
        """Return the key that is pressed within this many seconds; empty: no key was."""
        if self._fd is None:
            time.sleep(timeout_s)
            return ""
        ready, _, _ = select.select((self._fd,), (), (), timeout_s)
        return os.read(self._fd, 1).decode(errors="replace") if ready else ""
