"""The reports of a worker to successive coordinators: none is lost when a coordinator dies."""

import queue
import threading
import time
from contextlib import closing

import msgspec
import pytest
from websockets.sync.server import serve

from elastane.api import control
from elastane.api.endpoint import CoordinatorEndpoint
from elastane.api.records import EventLine
from elastane.api.rundir import RunDir
from elastane.runtime.links.coordinator_link import MOST_REPORTS, CoordinatorLink

from .step_reports import build_report

WAIT_S = 20


class Coordinators:
    """Coordinators at the same address, one after the other; each one receives until `disconnect`."""

    def __init__(self, folder) -> None:
        self.messages: queue.Queue = queue.Queue()
        self._connections: list = []
        self._server = serve(self._handle_connection, "127.0.0.1", 0)
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        host, port = self._server.socket.getsockname()[:2]
        self.files = RunDir(folder)
        self.files.secret.write_text("s" * 32)
        self.files.endpoint.write_bytes(msgspec.json.encode(CoordinatorEndpoint(host=host, port=port)))

    def _handle_connection(self, connection) -> None:
        self._connections.append(connection)
        number = len(self._connections)
        for frame in connection:
            self.messages.put((number, control.decode_to_coordinator(frame)))

    def receive_until(self, is_last, *, term: int = 1):
        """Return what the coordinator of a term receives, up to the first message that `is_last` accepts."""
        received, deadline = [], time.monotonic() + WAIT_S
        while not received or not is_last(received[-1]):
            number, message = self.messages.get(timeout=max(0.0, deadline - time.monotonic()))
            received += [message] if number == term else []
        return received

    def disconnect(self) -> None:
        """Close the connection, as a killed coordinator does that has read everything and written nothing."""
        self._connections[-1].socket.close()

    def acknowledge(self, step: int) -> None:
        self._connections[-1].send(control.encode(control.Acknowledge(step=step)))

    def close(self) -> None:
        self._server.shutdown()


@pytest.fixture
def coordinators(tmp_path):
    with closing(Coordinators(tmp_path)) as coordinators:
        yield coordinators


@pytest.fixture
def link(coordinators):
    return CoordinatorLink(
        coordinators.files,
        0,
        report=lambda: control.WorkerReport(worker=0, pid=1, host="", port=0, state="member"),
        receive=lambda _message: None,
        attempt=0,
    )


def build_event(key: str, step: int) -> control.WorkerEvent:
    event = EventLine(time=1.0, kind="message", step=step)
    return control.WorkerEvent(worker=0, key=key, event=event)


def list_event_keys(messages) -> list[str]:
    return [message.key for message in messages if isinstance(message, control.WorkerEvent)]


def is_report_of(step: int):
    return lambda message: isinstance(message, control.StepReports) and message.reports[-1].line.step >= step


def test_unacknowledged_messages_are_sent_to_the_next_coordinator(coordinators, link):
    link.report_step(build_report(1))
    link.send(build_event("a", 1))
    first = coordinators.receive_until(lambda message: isinstance(message, control.WorkerEvent))
    coordinators.disconnect()
    second = coordinators.receive_until(is_report_of(1), term=2)
    assert list_event_keys(first) == list_event_keys(second) == ["a"]
    kinds = [type(message) for message in second]
    assert kinds == [control.WorkerReport, control.WorkerEvent, control.StepReports]


def test_events_acknowledged_by_a_later_step_are_not_sent_again(coordinators, link):
    link.report_step(build_report(1))
    link.send(build_event("a", 1))
    coordinators.receive_until(lambda message: isinstance(message, control.WorkerEvent))
    coordinators.acknowledge(1)
    link.report_step(build_report(2))
    link.send(build_event("b", 2))
    coordinators.receive_until(is_report_of(2))
    # The event of step 1 arrived before the report of step 2; the event of step 2 may have arrived after it.
    coordinators.acknowledge(2)
    link.report_step(build_report(3))
    coordinators.receive_until(is_report_of(3))
    time.sleep(0.2)
    coordinators.disconnect()
    assert list_event_keys(coordinators.receive_until(is_report_of(3), term=2)) == ["b"]


def test_a_joiner_reports_what_it_has_taken_over_once(coordinators, link):
    link.take_over([build_report(1), build_report(2)], [build_event("a", 1)])
    first = coordinators.receive_until(is_report_of(2))
    # A second donor of the state has acknowledged less.
    link.take_over([build_report(1), build_report(2)], [build_event("a", 1), build_event("b", 2)])
    link.report_step(build_report(3))
    second = coordinators.receive_until(is_report_of(3))
    assert (list_event_keys(first), list_event_keys(second)) == (["a"], ["b"])
    assert [report.line.step for report in second[-1].reports] == [3]


def test_many_reports_go_in_several_messages(coordinators, link):
    link.take_over([build_report(step) for step in range(1, 2 * MOST_REPORTS + 2)], [])
    received = coordinators.receive_until(is_report_of(2 * MOST_REPORTS + 1))
    sizes = [len(message.reports) for message in received if isinstance(message, control.StepReports)]
    assert sizes == [MOST_REPORTS, MOST_REPORTS, 1]


def test_flush_returns_after_everything_is_sent(coordinators, link):
    link.send(build_event("a", 0))
    assert link.flush(WAIT_S)
