"""A worker's line to the coordinator: reports up, proposals down, in threads of their own.

Steps never wait for it. While the coordinator is away, reports gather here and go out when it is back.
"""

import threading
import time
from collections import deque
from collections.abc import Callable

from websockets.exceptions import WebSocketException
from websockets.sync.client import ClientConnection, connect

from elastane.api import control
from elastane.api.endpoint import build_bearer_header, read_endpoint, read_secret
from elastane.api.rundir import RunDir
from elastane.api.untrusted_data import Malformed
from elastane.runtime.links.inherited_descriptors import close_in_children

REPORT_S = 0.5
FLUSH_S = 0.05
RETRY_S = 0.05


class CoordinatorLink:
    """The line of one worker.

    Args:
        run_dir: where the endpoint and the secret lie.
        worker: own number.
        report: makes the current report; called from this class's thread.
        hear: takes what the coordinator says; called from this class's thread.
    """

    def __init__(
        self,
        run_dir: RunDir,
        worker: int,
        report: Callable[[], control.WorkerReport],
        hear: Callable[[control.ToWorker], None],
    ) -> None:
        self._run_dir = run_dir
        self._worker = worker
        self._report = report
        self._hear = hear
        self._secret = read_secret(run_dir)
        self._wake = threading.Event()
        self._lock = threading.Lock()
        self._steps: deque[control.StepReport] = deque()
        self._sent = 0
        self._reported = 0
        self._once: list[control.FromWorker] = []
        # Sent, each with the last step reported before; the coordinator may have died before it wrote them.
        self._unsure: list[tuple[int, control.WorkerEvent]] = []
        self._lost: dict[int, control.PeerLost] = {}
        self._lost_sent: set[int] = set()
        self._changed = True
        self._connection: ClientConnection | None = None
        close_in_children(self)
        threading.Thread(target=self._listen, name="elastane-control", daemon=True).start()
        threading.Thread(target=self._speak, name="elastane-reports", daemon=True).start()

    def close_in_child(self) -> None:
        """A forked process must not keep the connection of this one open."""
        if self._connection is not None:
            self._connection.socket.close()

    # -- from other threads --------------------------------------------------------------------------------

    def changed(self) -> None:
        """Report soon."""
        self._changed = True
        self._wake.set()

    def peer_lost(self, peer: int, generation: int) -> None:
        """Report a broken connection at once, and again to every new coordinator."""
        with self._lock:
            self._lost[peer] = control.PeerLost(worker=self._worker, peer=peer, generation=generation)
        self._wake.set()

    def step(self, report: control.StepReport) -> None:
        """Report a committed step until it is acknowledged."""
        with self._lock:
            self._steps.append(report)
            self._reported = report.line.step

    def tell(self, message: control.FromWorker) -> None:
        """Send this once.

        What has happened is sent again to a coordinator that comes before a later step is acknowledged: its
        predecessor may have died with it.
        """
        with self._lock:
            self._once.append(message)
        if not isinstance(message, control.WorkerEvent):
            # What is only to be written down may be told together with what follows.
            self._wake.set()

    def flush(self, timeout_s: float) -> bool:
        """Wait until everything is said and every step acknowledged; False when time is up."""
        deadline = time.monotonic() + timeout_s
        self._wake.set()
        while time.monotonic() < deadline:
            with self._lock:
                if not self._steps and not self._once:
                    return True
            time.sleep(FLUSH_S)
        return False

    # -- threads -------------------------------------------------------------------------------------------

    def _listen(self) -> None:
        """Stay connected; whatever breaks is mended by connecting again, and everything is said again."""
        while True:
            try:
                # Without the context, `websockets` warns; a script may have turned warnings into errors.
                with connect(
                    read_endpoint(self._run_dir).url,
                    additional_headers=build_bearer_header(self._secret),
                    open_timeout=5,
                    max_size=control.LARGEST_MESSAGE_BYTES,
                    compression=None,
                    proxy=None,
                ) as connection:
                    try:
                        self._follow(connection)
                    finally:
                        # Nobody waits for an answer to a goodbye.
                        connection.close_socket()
            except (OSError, Malformed, WebSocketException):
                time.sleep(RETRY_S)

    def _follow(self, connection: ClientConnection) -> None:
        """Hear one coordinator out."""
        with self._lock:
            self._sent = 0
            self._lost_sent.clear()
            self._once = [*(happened for _, happened in self._unsure), *self._once]
            self._unsure = []
            self._changed = True
            self._connection = connection
        self._wake.set()
        try:
            for frame in connection:
                self._heard(control.decode_to_worker(frame))
        finally:
            with self._lock:
                self._connection = None

    def _heard(self, message: control.ToWorker) -> None:
        if isinstance(message, control.Acknowledge):
            with self._lock:
                while self._steps and self._steps[0].line.step <= message.step:
                    self._steps.popleft()
                # They came before the report of that step, on the same connection.
                self._unsure = [(step, told) for step, told in self._unsure if step >= message.step]
            return
        self._hear(message)

    def _speak(self) -> None:
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
                due = self._changed or now - last_report >= REPORT_S
                self._changed = False
                # A new coordinator must know who speaks before anything else is said.
                if due:
                    last_report = now
                    messages.append(self._report())
                messages += [lost for peer, lost in self._lost.items() if peer not in self._lost_sent]
                once, reported = list(self._once), self._reported
                messages += once
                unsent = [report for report in self._steps if report.line.step > self._sent]
                if unsent:
                    messages.append(control.StepReports(worker=self._worker, reports=tuple(unsent)))
                lost_now = set(self._lost)
            try:
                for message in messages:
                    connection.send(control.encode(message), text=True)
            except (OSError, WebSocketException):
                self._changed = True
                continue  # said again on the next connection
            with self._lock:
                if connection is self._connection:
                    self._sent = max(self._sent, *(report.line.step for report in unsent), 0)
                    self._lost_sent |= lost_now
                    self._unsure += [
                        (reported, told) for told in once if isinstance(told, control.WorkerEvent)
                    ]
                    self._once = self._once[len(once) :]
