"""What a worker tells coordinators that come and go: nothing is lost with one that dies."""

import queue
import threading
import time
from contextlib import closing

import msgspec
import pytest
from websockets.sync.server import serve

from elastane.api import control
from elastane.api.endpoint import CoordinatorEndpoint
from elastane.api.records import EventLine, LedgerLine, Samples
from elastane.api.rundir import RunDir
from elastane.runtime.links.coordinator_link import CoordinatorLink

WAIT_S = 20


class Coordinators:
    """One after the other, at the same address; each hears until it is told to die."""

    def __init__(self, folder) -> None:
        self.heard: queue.Queue = queue.Queue()
        self._connections: list = []
        self._server = serve(self._attend, "127.0.0.1", 0)
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        host, port = self._server.socket.getsockname()[:2]
        self.files = RunDir(folder)
        self.files.secret.write_text("s" * 32)
        self.files.endpoint.write_bytes(msgspec.json.encode(CoordinatorEndpoint(host=host, port=port)))

    def _attend(self, connection) -> None:
        self._connections.append(connection)
        number = len(self._connections)
        for frame in connection:
            self.heard.put((number, control.decode_to_coordinator(frame)))

    def until(self, wanted, *, term: int = 1):
        """All that the coordinator of this term hears, up to the first message that is wanted."""
        found, deadline = [], time.monotonic() + WAIT_S
        while not found or not wanted(found[-1]):
            number, message = self.heard.get(timeout=max(0.0, deadline - time.monotonic()))
            found += [message] if number == term else []
        return found

    def die(self) -> None:
        """As a process that is killed, having read everything and written nothing."""
        self._connections[-1].socket.close()

    def acknowledge(self, step: int) -> None:
        self._connections[-1].send(control.encode(control.Acknowledge(step=step)))

    def close(self) -> None:
        self._server.shutdown()


@pytest.fixture
def coordinators(tmp_path):
    with closing(Coordinators(tmp_path)) as them:
        yield them


@pytest.fixture
def line(coordinators):
    return CoordinatorLink(
        coordinators.files,
        0,
        report=lambda: control.WorkerReport(worker=0, pid=1, host="", port=0, state="member"),
        receive=lambda _message: None,
    )


def happened(key: str, step: int) -> control.WorkerEvent:
    event = EventLine(time=1.0, kind="message", step=step)
    return control.WorkerEvent(worker=0, key=key, event=event)


def report(step: int) -> control.StepReport:
    samples = Samples(epoch=0, start=0, stop=1, count=1, checksum="")
    line = LedgerLine(
        step=step, generation=1, workers={0: ((0, 1),)}, samples=samples, loss=1.0, loss_hex=1.0.hex(),
        time=1.0, seconds={},
    )  # fmt: skip
    return control.StepReport(worker=0, line=line, step_s=0.1, healthy=True)


def keys_of(messages) -> list[str]:
    return [one.key for one in messages if isinstance(one, control.WorkerEvent)]


def is_report_of(step: int):
    return lambda message: isinstance(message, control.StepReports) and message.reports[-1].line.step >= step


def test_unacknowledged_messages_are_sent_to_the_next_coordinator(coordinators, line):
    line.report_step(report(1))
    line.send(happened("a", 1))
    first = coordinators.until(lambda message: isinstance(message, control.WorkerEvent))
    coordinators.die()
    second = coordinators.until(is_report_of(1), term=2)
    assert keys_of(first) == keys_of(second) == ["a"]
    assert [type(one) for one in second] == [control.WorkerReport, control.WorkerEvent, control.StepReports]


def test_events_acknowledged_by_a_later_step_are_not_sent_again(coordinators, line):
    line.report_step(report(1))
    line.send(happened("a", 1))
    coordinators.until(lambda message: isinstance(message, control.WorkerEvent))
    coordinators.acknowledge(1)
    line.report_step(report(2))
    line.send(happened("b", 2))
    coordinators.until(is_report_of(2))
    # That of step 1 was heard before the report of step 2; that of step 2 need not have been.
    coordinators.acknowledge(2)
    line.report_step(report(3))
    coordinators.until(is_report_of(3))
    time.sleep(0.2)
    coordinators.die()
    assert keys_of(coordinators.until(is_report_of(3), term=2)) == ["b"]


def test_flush_returns_after_everything_is_sent(coordinators, line):
    line.send(happened("a", 0))
    assert line.flush(WAIT_S)
