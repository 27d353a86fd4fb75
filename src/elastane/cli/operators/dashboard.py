"""``elastane dashboard``: pages about the cluster, or about one run, for a browser."""

import os
import subprocess
from typing import Annotated

import msgspec
import typer

from elastane.cli.command import AsJson, open_console, print_json
from elastane.cli.completion import complete_runs
from elastane.cli.operators.service_process import parse_listen_address, start_service, wait_for_service
from elastane.cli.options import argument, expand_options, option
from elastane.cluster.client.context import StartedDashboard, save_dashboard
from elastane.cluster.nouns.dashboard import DashboardReady, DashboardSettings
from elastane.common.connections.controller_context import check_context, find_context
from elastane.common.home import find_home, make_home
from elastane.common.local_paths import make_absolute
from elastane.common.process_identity import read_start_time
from elastane.run.machines.visits.run_finder import find_run

SERVICE = "elastane.cluster.dashboard"
PORT = 7426


class DashboardOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Options of ``elastane dashboard`` as typed."""

    listen: Annotated[str, option("HOST:PORT", "Address to listen on.")] = f"127.0.0.1:{PORT}"
    tls_cert: Annotated[str, option("FILE", "Certificate chain for HTTPS; needs --tls-key.")] = ""
    tls_key: Annotated[str, option("FILE", "Private key of the certificate.")] = ""


@expand_options
def dashboard(
    run: Annotated[
        str,
        argument(
            "[RUN]",
            "A run's name or directory. Default: the cluster.",
            autocompletion=complete_runs,
            show_default=False,
        ),
    ] = "",
    *,
    options: DashboardOptions,
    as_json: AsJson = False,
) -> None:
    """Serve pages about the cluster, or about RUN, for a browser, until Ctrl-C.

    People sign in with their tokens, and see and do what those allow. Jobs, and
    the controller, continue without it. The page of RUN needs no controller.

      $ elastane dashboard
      $ elastane dashboard demo

    With --json, an object with the keys url, pid and, for RUN, key.
    """
    host, port = parse_listen_address(options.listen)
    settings = DashboardSettings(
        host=host, port=port, certificate=make_absolute(options.tls_cert), key=make_absolute(options.tls_key)
    )
    if run:
        settings = msgspec.structs.replace(settings, run_dir=str(find_run(run).root.absolute()))
    else:
        context = find_context()
        check_context(context)
        settings = msgspec.structs.replace(
            settings, cluster_url=context.url, cluster_certificate=context.certificate
        )
    make_home()
    process, ready = start_dashboard(settings, companion=os.getpid())
    console = open_console(as_json=as_json)
    if as_json:
        print_json(ready)
    address = f"{ready.url}/sign-in?key={ready.key}" if ready.key else ready.url
    console.print(f"dashboard  {address}", markup=False)
    console.print("Ctrl-C ends it")
    raise typer.Exit(wait_for_service(process))


def start_dashboard(
    settings: DashboardSettings, *, companion: int
) -> "tuple[subprocess.Popen[bytes], DashboardReady]":
    """Start a dashboard that ends with ``companion``, and record one of a cluster for commands."""
    log = find_home() / "dashboard.log"
    process, ready = start_service(SERVICE, settings, DashboardReady, log, companion=companion)
    if settings.cluster_url:
        started = read_start_time(process.pid) or 0
        save_dashboard(
            StartedDashboard(
                url=ready.url, cluster_url=settings.cluster_url, pid=process.pid, started=started
            )
        )
    return process, ready
