"""A worker's connection to the coordinator, which carries reports and proposals in separate threads.

Training steps never wait for it. While the coordinator is down, reports wait here for the next one.
"""

import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, TypeAlias

import msgspec
from websockets.exceptions import WebSocketException
from websockets.sync.client import ClientConnection

from elastane.common.untrusted_data import Malformed
from elastane.run.connections.coordinator_connection import open_connection_in_charge
from elastane.run.connections.endpoint import read_own_endpoint, read_secret
from elastane.run.connections.short_reports import shorten_report, shorten_steps
from elastane.run.nouns import control
from elastane.run.nouns.membership import GenerationId
from elastane.run.nouns.records import Shares
from elastane.run.nouns.rundir import RunDir
from elastane.run.nouns.silence_limits import SilenceLimits
from elastane.run.worker.links.inherited_descriptors import close_in_children

if TYPE_CHECKING:
    from elastane.run.connections.threaded_connection import ThreadedConnection

Connection: TypeAlias = "ClientConnection | ThreadedConnection"
FLUSH_S = 0.05
MOST_REPORTS = 256
"""The most reports of steps in one message, whose size is limited."""
RETRY_S = 0.05
CONNECT_TIMEOUT_S = 5.0


class CoordinatorLink:
    """The connection of one worker to the present coordinator of its run, which may change.

    Args:
        run_dir: the run directory, which has the endpoint and the secret.
        report: returns the current report; called from this class's thread.
        receive: handles the coordinator's messages; called from this class's thread.
        attempt: how often the run had been resumed when the attempt of this worker began.
        silence: the limits of the run, which say how often to report.
    """

    def __init__(
        self,
        run_dir: RunDir,
        worker: int,
        report: Callable[[], control.WorkerReport],
        receive: Callable[[control.ToWorker], None],
        attempt: int,
        *,
        silence: SilenceLimits,
    ) -> None:
        self._run_dir, self._attempt, self._silence = run_dir, attempt, silence
        self._worker = worker
        self._report = report
        self._receive = receive
        self._secret = read_secret(run_dir)
        self._wake = threading.Event()
        self._lock = threading.Lock()
        self._steps: deque[control.StepReport] = deque()
        self._sent = 0
        self._reported = 0
        self._outgoing: list[control.FromWorker] = []
        # Sent events that the coordinator may not have written before its death, each with the last step
        # reported before it.
        self._unconfirmed: list[tuple[int, control.WorkerEvent]] = []
        self._lost: dict[int, control.PeerLost] = {}
        self._lost_sent: set[int] = set()
        # The generations that have crossed the present connection in either direction.
        self._crossed: set[GenerationId] = set()
        # The shares in the last line on the present connection; empty: it has had none.
        self._shares: Shares = {}
        self._changed = True
        self._connection: Connection | None = None
        close_in_children(self)
        threading.Thread(target=self._listen, name="elastane-control", daemon=True).start()
        threading.Thread(target=self._send_all, name="elastane-reports", daemon=True).start()

    def close_in_child(self) -> None:
        """Close the connection in a forked process, which would keep it open after this process has died."""
        if isinstance(self._connection, ClientConnection):
            self._connection.socket.close()
        elif self._connection is not None:
            self._connection.close_descriptor()

    # -- from other threads --------------------------------------------------------------------------------

    def request_report(self) -> None:
        """Send a report soon."""
        self._changed = True
        self._wake.set()

    def report_lost_peer(self, peer: int) -> None:
        """Report a broken connection to a peer at once, and again to every new coordinator."""
        with self._lock:
            self._lost[peer] = control.PeerLost(worker=self._worker, peer=peer)
        self._wake.set()

    def report_step(self, report: control.StepReport) -> None:
        """Report a committed step until the coordinator acknowledges it."""
        with self._lock:
            self._steps.append(report)
            self._reported = report.line.step

    def send(self, message: control.FromWorker) -> None:
        """Send a message once.

        If a new coordinator takes over before a later step is acknowledged, it gets the event again: its
        predecessor may have died before it wrote the event.
        """
        with self._lock:
            self._outgoing.append(message)
        if not isinstance(message, control.WorkerEvent):
            # The coordinator only records an event, so the event can wait for the next message.
            self._wake.set()

    def list_unacknowledged(self) -> tuple[list[control.StepReport], list[control.WorkerEvent]]:
        """Return the steps, and the events, that no coordinator has acknowledged, oldest first."""
        with self._lock:
            return list(self._steps), self._list_events()

    def take_over(self, steps: Iterable[control.StepReport], events: Iterable[control.WorkerEvent]) -> None:
        """Report the steps and events of another worker, before the first ones of this worker."""
        with self._lock:
            new = [report for report in steps if report.line.step > self._reported]
            self._steps.extend(new)
            self._reported = new[-1].line.step if new else self._reported
            known = {event.key for event in self._list_events()}
            self._outgoing += [
                msgspec.structs.replace(event, worker=self._worker)
                for event in events
                if event.key not in known
            ]
        self._wake.set()

    def _list_events(self) -> list[control.WorkerEvent]:
        waiting = [message for message in self._outgoing if isinstance(message, control.WorkerEvent)]
        return [event for _, event in self._unconfirmed] + waiting

    def flush(self, timeout_s: float) -> bool:
        """Wait until everything is sent and every step acknowledged; return False after the timeout."""
        deadline = time.monotonic() + timeout_s
        self._wake.set()
        while time.monotonic() < deadline:
            with self._lock:
                if not self._steps and not self._outgoing:
                    return True
            time.sleep(FLUSH_S)
        return False

    # -- threads -------------------------------------------------------------------------------------------

    def _listen(self) -> None:
        """Stay connected: after every failure, reconnect and send unacknowledged reports again."""
        while True:
            try:
                # Without the context `websockets` warns, and a script may have turned warnings into errors.
                with open_connection_in_charge(
                    lambda: read_own_endpoint(self._run_dir, self._attempt),
                    self._secret,
                    largest_bytes=control.LARGEST_MESSAGE_BYTES,
                    timeout_s=CONNECT_TIMEOUT_S,
                    pings_between_machines_s=self._silence.pings_s,
                ) as connection:
                    try:
                        self._follow(connection)
                    finally:
                        # Do not wait for an answer to a close frame.
                        connection.close_socket()
            except (OSError, Malformed, WebSocketException):
                time.sleep(RETRY_S)

    def _follow(self, connection: Connection) -> None:
        """Take the messages of one coordinator until its connection ends."""
        with self._lock:
            self._sent = 0
            self._lost_sent.clear()
            self._crossed.clear()
            self._shares = {}
            self._outgoing = [*(event for _, event in self._unconfirmed), *self._outgoing]
            self._unconfirmed = []
            self._changed = True
            self._connection = connection
        self._wake.set()
        try:
            for frame in connection:
                self._take(control.decode_to_worker(frame))
        finally:
            with self._lock:
                self._connection = None

    def _take(self, message: control.ToWorker) -> None:
        if isinstance(message, control.Acknowledge):
            with self._lock:
                while self._steps and self._steps[0].line.step <= message.step:
                    self._steps.popleft()
                # The coordinator received them before the report of that step, on the same connection.
                self._unconfirmed = [
                    (step, event) for step, event in self._unconfirmed if step >= message.step
                ]
            return
        if isinstance(message, control.Propose):
            with self._lock:
                self._crossed.add(message.generation.id)
        self._receive(message)

    def _build_short_report(self) -> control.WorkerReport:
        """Return the current report. The coordinator knows a generation that has crossed the connection."""
        report = self._report()
        is_known = report.newest is not None and report.newest.id in self._crossed
        return shorten_report(report) if is_known else report

    def _send_all(self) -> None:
        last_report = 0.0
        while True:
            self._wake.wait(FLUSH_S)
            self._wake.clear()
            with self._lock:
                connection = self._connection
            if connection is None:
                continue
            now = time.monotonic()
            messages: list[control.FromWorker] = []
            with self._lock:
                due = self._changed or now - last_report >= self._silence.report_every_s
                self._changed = False
                # A new coordinator must know the worker before it receives anything else.
                if due:
                    last_report = now
                    messages.append(self._build_short_report())
                messages += [lost for peer, lost in self._lost.items() if peer not in self._lost_sent]
                outgoing, reported = list(self._outgoing), self._reported
                messages += outgoing
                unsent = [report for report in self._steps if report.line.step > self._sent][:MOST_REPORTS]
                if unsent:
                    short = shorten_steps(unsent, self._shares)
                    messages.append(control.StepReports(worker=self._worker, reports=short))
                lost_peers = set(self._lost)
            try:
                for message in messages:
                    connection.send(control.encode(message), text=True)
            except (OSError, WebSocketException):
                self._changed = True
                continue  # sent again on the next connection
            with self._lock:
                if connection is self._connection:
                    self._crossed.update(
                        message.newest.id
                        for message in messages
                        if isinstance(message, control.WorkerReport) and message.newest is not None
                    )
                    self._shares = unsent[-1].line.workers if unsent else self._shares
                    self._sent = max(self._sent, *(report.line.step for report in unsent), 0)
                    self._lost_sent |= lost_peers
                    self._unconfirmed += [
                        (reported, event) for event in outgoing if isinstance(event, control.WorkerEvent)
                    ]
                    self._outgoing = self._outgoing[len(outgoing) :]
