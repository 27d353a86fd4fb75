"""``elastane top``: pools and jobs of the cluster, live."""

import time
from collections.abc import Callable, Iterator
from itertools import chain, islice
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer

from elastane.api.rest import HealthProblem, JobSummary, Occupancy, State
from elastane.cli.verb import AsJson, print_json, talk
from elastane.client.context import connect, context

if TYPE_CHECKING:
    from rich.console import Console

    from elastane.client.cluster import Cluster

ORDER: tuple[State, ...] = ("running", "queued", "paused")
PLAIN_ROWS = 1000


class Sight(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The cluster at one moment, as far as the token may see it.

    Args:
        time_s: seconds since 1970.
        pools: with what all teams use of them.
        jobs: that run, then those that wait, then the paused ones; newest first.
        more: there are others.
        failing: the controller cannot decide, or cannot store what it decides; jobs go on as they are.
        problems: what is wrong with it then.
    """

    time_s: float
    pools: tuple[Occupancy, ...]
    jobs: tuple[JobSummary, ...]
    more: bool
    failing: bool
    problems: tuple[HealthProblem, ...] = ()


def top(
    *,
    team: Annotated[str, typer.Option(metavar="TEAM", help="Only this team's.", show_default=False)] = "",
    every: Annotated[float, typer.Option(metavar="S", min=0.2, help="Seconds between two looks.")] = 1.0,
    as_json: AsJson = False,
) -> None:
    """Show pools and jobs of the cluster, live; q or Ctrl-C ends it.

    Where there is no terminal, and with --json, one look.

    With --json, an object with the keys timeS, pools, jobs, more, failing and problems.
    """
    with connect() as cluster:
        if as_json:
            print_json(look(cluster, team, PLAIN_ROWS))
            return
        console, url = talk(), context().url
        if not console.is_terminal:
            show(console, look(cluster, team, PLAIN_ROWS))
            return
        live(console, url, lambda: look(cluster, team, console.height), every)


def look(cluster: "Cluster", team: str, rows: int) -> Sight:
    """Pools, and so many jobs."""
    found = list(islice(_ordered(cluster, team), rows + 1))
    health = cluster.health()
    return Sight(
        time_s=time.time(),
        pools=cluster.occupancy(),
        jobs=tuple(found[:rows]),
        more=len(found) > rows,
        failing=health.status == "failing",
        problems=health.problems,
    )


def _ordered(cluster: "Cluster", team: str) -> Iterator[JobSummary]:
    return chain.from_iterable(cluster.jobs(team=team, states=(state,)) for state in ORDER)


def show(console: "Console", sight: Sight) -> None:
    from rich.text import Text  # noqa: PLC0415 - a program that asks for JSON needs none

    from elastane.cli.jobs.screen import jobs_part, pools_part  # noqa: PLC0415 - rich
    from elastane.cli.jobs.words import health_lines  # noqa: PLC0415
    from elastane.cli.tables import print_whole  # noqa: PLC0415

    for line in health_lines(sight.problems, sight.time_s) if sight.failing else ():
        print_whole(console, line)
    for part in (pools_part(sight), Text(), jobs_part(sight)):
        print_whole(console, part)


def live(console: "Console", url: str, looks: Callable[[], Sight], every_s: float) -> None:
    """Look again and again, until somebody has had enough."""
    from rich.live import Live  # noqa: PLC0415

    from elastane.cli.jobs.screen import screen  # noqa: PLC0415
    from elastane.cli.keys import Keys  # noqa: PLC0415

    with Keys() as keys, Live(console=console, screen=True, auto_refresh=False) as view:
        while True:
            view.update(screen(looks(), url, console.width, console.height), refresh=True)
            if keys.pressed(every_s) in ("q", "Q"):
                return
