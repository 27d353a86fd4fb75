"""Connections to the controller that this user works with, and the one that was started on this machine.

``controller.json`` in the home has the process that ``elastane up`` started last, ``run-as.json`` the system
users of its jobs, ``dashboard.json`` the dashboard that was started last.
"""

from typing import TYPE_CHECKING

import msgspec

from elastane.cluster.nouns.rest import Me
from elastane.cluster.nouns.run_as import RunAs
from elastane.common.connections.controller_context import Context, check_context, find_context
from elastane.common.errors import BadInput
from elastane.common.home import read_home_file, write_home_file
from elastane.common.process_identity import read_start_time

if TYPE_CHECKING:
    from elastane.cluster.client.cluster import Cluster

RUNNING = "controller.json"
RUN_AS = "run-as.json"
DASHBOARD = "dashboard.json"
EVERY_TEAM = "*"
DEFAULT_TEAM = "default"


class StartedController(msgspec.Struct, frozen=True, kw_only=True):
    """A controller that was started on this machine.

    Args:
        url: as other programs reach it.
        started: start time of that process, in clock ticks since the boot of the machine.
    """

    url: str
    pid: int
    started: int


class StartedDashboard(msgspec.Struct, frozen=True, kw_only=True):
    """A dashboard of a cluster that was started on this machine.

    Args:
        url: as browsers on this machine reach it.
        started: start time of that process, in clock ticks since the boot of the machine.
    """

    url: str
    cluster_url: str
    pid: int
    started: int


def connect(to: Context | None = None, *, timeout_s: float = 30.0) -> "Cluster":
    """Return a connection to a controller, by default to the one of `find_context`.

    Raises:
        BadInput: no controller is configured, its address is not encrypted, its certificate is missing, or
            httpx is not installed.
    """
    to = find_context() if to is None else to
    check_context(to)  # before httpx is loaded, which may be missing
    from elastane.cluster.client.cluster import Cluster

    return Cluster.from_context(to, timeout_s=timeout_s)


def find_own_team(me: Me) -> str:
    """Return the only team that a token belongs to; empty if it belongs to every team or to none."""
    return "" if me.team == EVERY_TEAM else me.team


def find_team_of(context: Context) -> str:
    """Return the team of a token, as `elastane login` has saved it or the controller knows it."""
    if context.team:
        return context.team
    with connect(context) as cluster:
        return find_own_team(cluster.me()) or DEFAULT_TEAM


def read_running() -> StartedController | None:
    """Return the controller that was started here last; None if none was."""
    return read_home_file(RUNNING, StartedController)


def save_running(found: StartedController) -> None:
    write_home_file(RUNNING, found)


def save_dashboard(found: StartedDashboard) -> None:
    write_home_file(DASHBOARD, found)


def find_dashboard_url(cluster_url: str) -> str:
    """Return the address of the dashboard of a cluster that runs on this machine; empty: none is known."""
    try:
        found = read_home_file(DASHBOARD, StartedDashboard)
    except (BadInput, OSError):
        return ""
    if found is None or found.cluster_url.rstrip("/") != cluster_url.rstrip("/"):
        return ""
    return found.url if read_start_time(found.pid) == found.started else ""


def save_run_as(run_as: RunAs) -> None:
    """Save the system users of jobs for the next controller that starts here."""
    write_home_file(RUN_AS, run_as)


def read_run_as() -> RunAs:
    """Return the system users that jobs ran as when a controller started here last.

    Raises:
        BadInput: the file is damaged; jobs must not run as root because of that.
    """
    try:
        return read_home_file(RUN_AS, RunAs) or RunAs()
    except BadInput as error:
        raise BadInput(
            error.what,
            means="the system users of the jobs are unknown; nothing was started",
            do="name them again: elastane up --run-as TEAM=USER",
        ) from error
