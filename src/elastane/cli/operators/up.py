"""``elastane up`` and ``elastane down``: start and end the controller of this machine's cluster."""

import getpass
import os
import select
import signal
import stat
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer

from elastane.cli.command import AsJson, open_console, print_json, print_outcome
from elastane.cli.devices import count_devices
from elastane.cli.operators.controller_process import (
    check_no_controller_runs,
    explain_write_errors,
    find_controller,
    record_controller,
)
from elastane.cli.operators.dashboard import start_dashboard
from elastane.cli.operators.service_process import (
    GONE_S,
    end_service,
    parse_listen_address,
    start_service,
    wait_for_service,
)
from elastane.cli.options import expand_options, flag, option
from elastane.cluster.client.context import read_run_as
from elastane.cluster.engines.local.user_isolation import PASSAGE
from elastane.cluster.nouns.controller import ControllerReady, ControllerSettings
from elastane.cluster.nouns.dashboard import DashboardSettings
from elastane.cluster.nouns.run_as import RunAs, parse_run_as
from elastane.common.errors import BadInput, RunFailed
from elastane.common.home import find_home, make_home
from elastane.common.local_paths import make_absolute
from elastane.common.permissions import RIGHTS_OF_WORLD, restrict_permissions

if TYPE_CHECKING:
    from rich.console import Console

CONTROLLER = "elastane.cluster.controller"
PORT = 7425
NO_USERS = "none"
"""In place of a user of ``--run-as``: no system users are chosen."""


class UpOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Options of ``elastane up`` as typed."""

    listen: Annotated[str, option("HOST:PORT", "Address to listen on.")] = f"127.0.0.1:{PORT}"
    store: Annotated[
        str,
        option(
            "URL", "Database: sqlite:///PATH or postgresql://... Default: controller.db in $ELASTANE_HOME."
        ),
    ] = ""
    devices: Annotated[
        int | None,
        option(
            "N",
            "Number of devices of this machine. Default: its GPUs, or its CPU cores if it has no GPU.",
            min=1,
        ),
    ] = None
    tls_cert: Annotated[str, option("FILE", "Certificate chain for HTTPS; needs --tls-key.")] = ""
    tls_key: Annotated[str, option("FILE", "Private key of the certificate.")] = ""
    new_token: Annotated[
        bool, flag("Create another operator's token, for example if the last is lost.", "--new-token")
    ] = False
    run_as: Annotated[
        list[str] | None,
        option(
            "[TEAM=]USER",
            "Run the jobs of TEAM as this system user; without TEAM=, the jobs of all other teams. "
            "Repeatable, once per team. Needs root. Saved for the next elastane up; none removes it: all "
            "jobs run as the user of the controller again.",
            "--run-as",
        ),
    ] = None
    dashboard: Annotated[
        bool, flag("Serve pages for a browser too, on the next port, until it ends.", "--dashboard")
    ] = False
    detach: Annotated[bool, flag("Run the controller in the background.", "--detach", "-d")] = False


@expand_options
def up(*, options: UpOptions, as_json: AsJson = False) -> None:
    """Start a controller: scheduler, API and the engine of this machine.

    Jobs continue without it, so it can be ended and started again at any time.

    Without --run-as, jobs run as the user that starts the controller. A job can
    then read the files of that user, including the operator's token. If teams
    do not trust each other, name system users:

      $ sudo ELASTANE_HOME=/var/lib/elastane elastane up -d --run-as vision=el-vision --run-as el-jobs
    """
    console = open_console(as_json=as_json)
    check_no_controller_runs()
    settings = _build_settings(options)
    log = find_home() / "controller.log"
    with explain_write_errors("nothing was started"):
        make_home()
        closed = _close_files(settings.run_as, log)
        companion = None if options.detach else os.getpid()
        process, ready = start_service(CONTROLLER, settings, ControllerReady, log, companion=companion)
    ready = msgspec.structs.replace(ready, narrowed=(*closed, *ready.narrowed))
    lost = "; its operator's token is lost: use elastane up --new-token" if ready.token else ""
    try:
        with explain_write_errors(
            f"the controller was ended again, because other commands would not find it{lost}"
        ):
            record_controller(settings, process, ready)
            if options.dashboard:
                ready = _start_dashboard_beside(settings, ready)
    except BaseException:
        end_service(process)
        raise
    if as_json:
        print_json(ready)
    _print_controller(console, settings, ready)
    if options.detach:
        console.print(f"running in the background as process {process.pid}; log: {log}", markup=False)
        console.print("elastane down ends it")
        return
    console.print("Ctrl-C ends the controller; jobs continue without it")
    raise typer.Exit(wait_for_service(process))


def _start_dashboard_beside(settings: ControllerSettings, ready: ControllerReady) -> ControllerReady:
    """Start a dashboard that ends with the controller, and return the facts with its address."""
    beside = DashboardSettings(
        cluster_url=ready.url,
        cluster_certificate=settings.certificate,
        host=settings.host,
        port=settings.port and settings.port + 1,
        certificate=settings.certificate,
        key=settings.key,
    )
    _, started = start_dashboard(beside, companion=ready.pid)
    return msgspec.structs.replace(ready, dashboard=started.url)


def _build_settings(options: UpOptions) -> ControllerSettings:
    host, port = parse_listen_address(options.listen)
    count, kind = count_devices()
    return ControllerSettings(
        home=str(find_home()),
        store=options.store or f"sqlite:///{find_home() / 'controller.db'}",
        host=host,
        port=port,
        certificate=make_absolute(options.tls_cert),
        key=make_absolute(options.tls_key),
        devices=options.devices or count,
        device=kind,
        user=getpass.getuser(),
        new_token=options.new_token,
        run_as=_choose_users(options.run_as),
    )


def _close_files(run_as: RunAs, log: Path) -> list[str]:
    """Remove the rights of other users on the home and its secrets, and return the paths that had some."""
    # The users of jobs must be able to pass through the home to their run directories.
    others = RIGHTS_OF_WORLD & ~stat.S_IXOTH if run_as.isolates or _is_shared() else RIGHTS_OF_WORLD
    closed = [str(find_home())] if restrict_permissions(find_home(), others) else []
    secrets = (log, *find_home().glob("cluster*.json"))
    return closed + [str(path) for path in secrets if restrict_permissions(path)]


def _print_controller(console: "Console", settings: ControllerSettings, ready: ControllerReady) -> None:
    """Print the address, store, devices, users and token of a controller that has started."""
    rows = [
        ("controller", ready.url),
        *([("dashboard", ready.dashboard)] if ready.dashboard else []),
        ("store", ready.store),
        ("devices", f"{settings.devices} x {settings.device}, in pool local"),
        ("jobs", _format_users(settings.run_as, settings.user)),
    ]
    if ready.token:
        rows.append(("token", ready.token))
        rows.append(("", f"an operator's, shown only once; saved in {find_home() / 'cluster.json'}"))
    if ready.narrowed:
        rows.append(("closed", f"to other users: {', '.join(ready.narrowed)}"))
    for title, value in rows:
        console.print(f"{title:<12}{value}", markup=False)


def _choose_users(words: list[str] | None) -> RunAs:
    """Return the system users that jobs are to run as."""
    if words == [NO_USERS]:
        return RunAs()
    return parse_run_as(words) if words else read_run_as()


def _is_shared() -> bool:
    """Return whether an earlier controller with --run-as may have left run directories of other users."""
    try:
        return stat.S_IMODE((find_home() / "runs").stat().st_mode) == PASSAGE
    except OSError:
        return False


def _format_users(run_as: RunAs, own: str) -> str:
    """Return the users of jobs as text: ``run as el-vision (team vision), el-jobs (other teams)``."""
    if not run_as.isolates:
        return f"run as {own}, the user of the controller, and can read its token; see --run-as"
    users = [f"{user} (team {team})" for team, user in sorted(run_as.teams.items())]
    users += [f"{run_as.default} (other teams)" if users else run_as.default] if run_as.default else []
    return f"run as {', '.join(users)}"


def down(as_json: AsJson = False) -> None:
    """End the controller of this machine; jobs continue without it."""
    pid, process = find_controller()
    if process is None:
        ended = f"the controller, process {pid}, has already ended"
        raise BadInput(ended if pid else "no controller was started here", do="start one: elastane up")
    try:
        signal.pidfd_send_signal(process, signal.SIGTERM)
        # Its address is free again only when its last thread has ended.
        if not select.select((process,), (), (), GONE_S)[0]:
            raise RunFailed(f"process {pid} has not ended within {GONE_S:g} s", do=f"kill -9 {pid}")
    finally:
        os.close(process)
    words = "the controller has ended; jobs continue"
    print_outcome({"pid": pid, "ended": True}, words, as_json=as_json)
