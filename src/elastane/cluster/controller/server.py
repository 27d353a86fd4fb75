"""The process of the controller: store, API and loop, from start to end."""

import asyncio
import gc
import logging
import os
import resource
import signal
import socket
import sys
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import FrameType

import uvicorn
from fastapi import FastAPI

from elastane.cluster.client.controller_lock import lock_home
from elastane.cluster.controller.agents.all_engines import AllEngines
from elastane.cluster.controller.agents.fleet import Fleet
from elastane.cluster.controller.agents.site import Site, find_site
from elastane.cluster.controller.cluster.declarations import diff_configs
from elastane.cluster.controller.code_files import CodeFiles
from elastane.cluster.controller.elastic_jobs.follower import ElasticJobFollower
from elastane.cluster.controller.loop import Loop
from elastane.cluster.controller.metrics.meters import Meters
from elastane.cluster.controller.notifications.notifier import Notifier
from elastane.cluster.controller.planner import Planner
from elastane.cluster.controller.planning import Scheduler
from elastane.cluster.controller.rest.app import build_application
from elastane.cluster.controller.rest.connections import build_protocol, build_waiting_rules
from elastane.cluster.controller.rest.context import Controller
from elastane.cluster.controller.store import code_rows, documents
from elastane.cluster.controller.store.database import Store, list_store_files
from elastane.cluster.controller.store.failures import StoreError
from elastane.cluster.controller.store.lease import Lease
from elastane.cluster.controller.store.monitor import Monitor
from elastane.cluster.controller.store.tokens import make_first_token
from elastane.cluster.controller.traces.follower import TraceFollower, wants_traces
from elastane.cluster.engines.kinds import examine_engine, open_engine
from elastane.cluster.engines.local.accounts import find_team_account
from elastane.cluster.engines.local.engine import LocalEngine
from elastane.cluster.engines.local.user_isolation import PRIVATE_UMASK, prepare_home
from elastane.cluster.nouns.config import Config, PriorityClass
from elastane.cluster.nouns.controller import ControllerReady, ControllerSettings
from elastane.cluster.nouns.engine import ObservedNode
from elastane.cluster.nouns.pools import Pool
from elastane.cluster.scheduler.explanations import explain_decision
from elastane.cluster.scheduler.plan import plan
from elastane.common.connections.http_listener import format_url, load_server_certificate, open_http_listener
from elastane.common.connections.patient_listener import read_descriptor_limit
from elastane.common.permissions import restrict_permissions

IDLE_S = 75
"""Idle connections are closed after this time. Clients close theirs earlier."""
FAREWELL_S = 3
REFUSALS_S = 30.0
LEASE_S = 2.0
SWITCH_S = 0.0005
"""Interval at which threads give way. A request changes threads a dozen times; at the default interval, each
change would wait 5 ms while the loop computes."""
CLASSES = (
    PriorityClass(name="low", value=-100, description="gives way to all others"),
    PriorityClass(name="normal", value=0, default=True),
    PriorityClass(name="high", value=100, description="before all others"),
)
"""The priority classes of a new cluster. Operators can change them."""

logger = logging.getLogger(__name__)


def serve(
    settings: ControllerSettings, ready: Callable[[ControllerReady], None], clock: Callable[[], float]
) -> None:
    """Serve until SIGTERM or SIGINT.

    Raises:
        BadInput: it cannot listen there; another controller has the store or the home; others can read the
            store, and this user may not change its mode; or jobs cannot run as the named users.
        StoreError: the database cannot be used, or its lease was lost.
    """
    _raise_file_limit()
    if settings.run_as.isolates:
        prepare_home(settings.run_as, Path(settings.home))
        # With root's groups, the controller could read files for a job that the job's user cannot read.
        os.setgroups([])
        os.umask(PRIVATE_UMASK)
    closed = tuple(str(path) for path in list_store_files(settings.store) if restrict_permissions(path))
    sys.setswitchinterval(SWITCH_S)
    listener = open_http_listener(settings.host, settings.port, settings.certificate, settings.key)
    home = None
    try:
        home = lock_home(Path(settings.home))
        # The lease comes first: opening the store may change its schema under another controller.
        with Lease(settings.store) as lease:
            store = Store(settings.store, at_least=lease.read_last_change())
            try:
                with Monitor(store, lease.write_note):
                    _serve(settings, store, lease, listener, ready, clock, closed)
            finally:
                store.close()
    finally:
        listener.close()
        if home is not None:
            os.close(home)


def _serve(
    settings: ControllerSettings,
    store: Store,
    lease: Lease,
    listener: socket.socket,
    ready: Callable[[ControllerReady], None],
    clock: Callable[[], float],
    closed: tuple[str, ...],
) -> None:
    _declare_this_machine(store, settings, clock())
    site = find_site(
        Path(settings.home),
        _get_url(settings, listener),
        settings.certificate,
        isolates=settings.run_as.isolates,
    )
    code = CodeFiles(site.home)
    with store.begin_read() as tx:
        # No request is answered yet.
        code.clean(code_rows.list_digests(tx), clock())
    meters = Meters(clock)
    with store.begin_read() as tx:
        meters.begin(tx)
    loop = _build_loop(store, settings, site, clock, code, meters)
    controller = Controller(
        store,
        wake=loop.wake,
        plan=plan,
        explain=explain_decision,
        home=site.home,
        examine=partial(examine_engine, url=site.url),
        check_team=partial(find_team_account, settings.run_as),
        clock=clock,
        meters=meters,
    )
    follower = ElasticJobFollower(
        store, site.home, wake=loop.wake, check_team=controller.check_team, clock=clock
    )
    tracer = TraceFollower(store, clock=clock)
    notifier = Notifier(store, site.home, clock)
    app = build_application(controller)
    server = _Server(configure_server(app, settings))
    threads = [
        threading.Thread(target=asyncio.run, args=(loop.run(),), name="loop"),
        threading.Thread(target=asyncio.run, args=(follower.run(),), name="elastic-jobs"),
        threading.Thread(target=notifier.run, name="notifications"),
    ]
    ending, lost = threading.Event(), threading.Event()

    def close_services() -> None:
        for service in (loop, follower, tracer, notifier):
            service.close()

    def end(*_: object) -> None:
        server.handle_exit(signal.SIGTERM, None)
        ending.set()

    def end_without_lease() -> None:
        lost.set()
        # Stop decisions before requests: another controller may have the store.
        close_services()
        end()

    server.farewell = app.state.closing.set
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, end)
    # Imported modules stay for ever, so the garbage collector need not visit them again.
    gc.collect()
    gc.freeze()
    with store.begin_write() as tx:
        secret = make_first_token(tx, settings.user, clock(), another=settings.new_token)
        ready(_describe_ready(settings, store, listener, secret or "", closed))
    for thread in threads:
        thread.start()
    watch = partial(_watch_lease, lease, ending, end_without_lease)
    threading.Thread(target=watch, name="lease", daemon=True).start()
    if wants_traces(os.environ):
        # The end of the controller does not wait for a collector.
        threading.Thread(target=tracer.run, name="traces", daemon=True).start()
    threading.Thread(target=write_refusals, args=(controller, ending), name="refusals", daemon=True).start()
    try:
        server.run(sockets=[listener])
    finally:
        end()
        close_services()
        for thread in threads:
            thread.join()
        if not lost.is_set():
            _write_last_refusals(controller)
    if lost.is_set():
        raise lease.make_lost_error()


def _build_loop(
    store: Store,
    settings: ControllerSettings,
    site: Site,
    clock: Callable[[], float],
    code: CodeFiles,
    meters: Meters,
) -> Loop:
    node = ObservedNode(name=socket.gethostname(), pool="local", devices=settings.devices)
    local = LocalEngine(Path(settings.home), node=node, run_as=settings.run_as)
    engine = AllEngines(local, Fleet(store, site, open_engine, clock))
    scheduler = Scheduler(plan=plan, explain=explain_decision)
    return Loop(store, engine, scheduler, clock, planner=Planner(settings.store), code=code, meters=meters)


def _describe_ready(
    settings: ControllerSettings, store: Store, listener: socket.socket, secret: str, closed: tuple[str, ...]
) -> ControllerReady:
    return ControllerReady(
        url=_get_url(settings, listener),
        pid=os.getpid(),
        store=store.where,
        token=secret,
        narrowed=closed,
        run_as=settings.run_as,
    )


def _get_url(settings: ControllerSettings, listener: socket.socket) -> str:
    return format_url(listener, encrypted=bool(settings.certificate))


def _watch_lease(lease: Lease, ending: threading.Event, on_loss: Callable[[], None]) -> None:
    while not ending.wait(LEASE_S):
        if not lease.is_held():
            on_loss()


def write_refusals(controller: Controller, ending: threading.Event) -> None:
    """Write counted refusals to the audit log when their windows end, until the controller ends."""
    while not ending.wait(REFUSALS_S):
        try:
            controller.refusals.write_ended(controller.clock())
        except StoreError as error:
            logger.warning("refusals wait for the audit log: %s", error.what)


def _write_last_refusals(controller: Controller) -> None:
    why = ""
    try:
        controller.refusals.write_ended(controller.clock(), all_of_them=True)
    except StoreError as error:
        why = error.what
    if why:
        logger.error("the audit log misses the last refusals: %s", why)


def configure_server(app: FastAPI, settings: ControllerSettings) -> uvicorn.Config:
    return uvicorn.Config(
        app,
        # The API has no WebSockets. The application refuses such requests.
        ws="none",
        # It encrypts the connections itself: uvicorn would count them only after the handshake. Uvicorn takes
        # any factory here, but the annotation does not say so.
        http=build_protocol(  # type: ignore[arg-type]
            build_waiting_rules(read_descriptor_limit()),
            load_server_certificate(settings.certificate, settings.key),
        ),
        # Uvicorn's lines use the handler of this process, with a timestamp.
        log_config=None,
        log_level="warning",
        access_log=False,
        # Otherwise a client on this machine could claim another address with each request, and escape the
        # limit of failed attempts per address.
        proxy_headers=False,
        timeout_keep_alive=IDLE_S,
        timeout_graceful_shutdown=FAREWELL_S,
    )


def _raise_file_limit() -> None:
    """Raise the limit of open files: each job and each client needs one, and the default is about 1,000."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


def _declare_this_machine(store: Store, settings: ControllerSettings, now_s: float) -> None:
    """Declare this machine's devices as the pool ``local``, and `CLASSES`, in a store without pools."""
    with store.begin_write() as tx:
        standing = documents.read_declared_config(tx)
        if standing.pools:
            return
        pool = Pool(
            name="local",
            device=settings.device,
            devices=settings.devices,
            devices_per_node=max(1, settings.devices),
        )
        classes = standing.priorities or CLASSES
        changes = diff_configs(standing, Config(pools=(pool,), priorities=classes))
        documents.write_documents(tx, changes, now_s)


class _Server(uvicorn.Server):
    """A server that ends the streams of watchers before it shuts down; otherwise it would wait for ever."""

    farewell: Callable[[], None]

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        self.farewell()
        super().handle_exit(sig, frame)
