"""The reports of a worker to successive coordinators: none is lost when a coordinator dies."""

import queue
import threading
from contextlib import closing

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from websockets.sync.server import serve

from elastane.common.untrusted_data import Malformed
from elastane.run.connections.endpoint import CoordinatorEndpoint
from elastane.run.connections.short_reports import complete_steps, shorten_steps
from elastane.run.nouns import control
from elastane.run.nouns.membership import Generation, Member
from elastane.run.nouns.records import EventLine
from elastane.run.nouns.rundir import RunDir
from elastane.run.nouns.silence_limits import SilenceLimits
from elastane.run.worker.links.coordinator_link import MOST_REPORTS, CoordinatorLink
from tests.waiting import WAIT_S, wait_until

from .step_reports import build_report


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
        received = []
        while not received or not is_last(received[-1]):
            number, message = self.messages.get(timeout=WAIT_S)
            received += [message] if number == term else []
        return received

    def disconnect(self) -> None:
        """Close the connection, as a killed coordinator does that has read everything and written nothing."""
        self._connections[-1].socket.close()

    def acknowledge(self, step: int) -> None:
        self._connections[-1].send(control.encode(control.Acknowledge(step=step)))

    def propose(self, generation: Generation) -> None:
        self._connections[-1].send(control.encode(control.Propose(generation=generation)))

    def close(self) -> None:
        self._server.shutdown()


@pytest.fixture
def coordinators(tmp_path):
    with closing(Coordinators(tmp_path)) as coordinators:
        yield coordinators


@pytest.fixture
def position() -> dict:
    """The position of the worker in the run, for its reports."""
    return {}


@pytest.fixture
def link(coordinators, position):
    def report() -> control.WorkerReport:
        return control.WorkerReport(worker=0, pid=1, host="", port=0, state="member", **position)

    return CoordinatorLink(
        coordinators.files,
        0,
        report=report,
        receive=lambda _message: None,
        attempt=0,
        silence=SilenceLimits(),
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
    wait_until(lambda: [event.key for event in link._list_events()] == ["b"], "the first event is confirmed")
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


# -- what crosses a connection once ----------------------------------------------------------------------


def make_generation(number: int) -> Generation:
    return Generation(number, 1, (Member(0, "127.0.0.1", 1),), planned=False)


def has_generation(message) -> bool:
    return isinstance(message, control.WorkerReport) and message.newest is not None


def names_generation(number: int):
    def is_named(message) -> bool:
        named = getattr(message, "newest_id", None)
        return named is not None and named.number == number

    return is_named


def test_a_generation_crosses_each_connection_once(coordinators, link, position):
    position["newest"] = make_generation(1)
    for term in (1, 2):
        received = coordinators.receive_until(names_generation(1), term=term)
        assert [message.newest for message in received if has_generation(message)] == [make_generation(1)]
        coordinators.disconnect()


def test_a_proposed_generation_does_not_go_back(coordinators, link, position):
    coordinators.receive_until(lambda message: isinstance(message, control.WorkerReport))
    coordinators.propose(make_generation(2))
    position["newest"] = make_generation(2)
    received = coordinators.receive_until(names_generation(2))
    # A report may have been on its way before the proposal arrived.
    assert sum(map(has_generation, received)) <= 1
    position["newest"] = make_generation(3)
    assert has_generation(coordinators.receive_until(has_generation)[-1])


def list_steps(messages) -> list[tuple[int, bool]]:
    """Return the reported steps, and whether each line lacks its shares."""
    return [
        (report.line.step, report.shares_again)
        for message in messages
        if isinstance(message, control.StepReports)
        for report in message.reports
    ]


def test_shares_cross_each_connection_once(coordinators, link):
    for step in (1, 2):
        link.report_step(build_report(step))
        link.request_report()
        first = coordinators.receive_until(is_report_of(step))
    assert list_steps(first) == [(2, True)]
    coordinators.disconnect()
    second = coordinators.receive_until(is_report_of(2), term=2)
    assert list_steps(second) == [(1, False), (2, True)]


SHARES = st.sampled_from([{0: ((0, 8),)}, {0: ((0, 4),), 3: ((4, 8),)}, {3: ((0, 8),)}, {}])


@given(st.lists(st.lists(SHARES, max_size=4), max_size=4))
def test_a_coordinator_gets_the_lines_that_a_worker_reports(batches):
    sent, received, step = {}, {}, 0
    for batch in batches:
        reports = []
        for shares in batch:
            step += 1
            whole = build_report(step)
            line = msgspec.structs.replace(whole.line, workers=shares)
            reports.append(msgspec.structs.replace(whole, line=line))
        short = control.StepReports(worker=0, reports=shorten_steps(reports, sent))
        arrived = complete_steps(control.decode_to_coordinator(control.encode(short)), received)
        assert list(arrived.reports) == reports
        if reports:
            sent, received = reports[-1].line.workers, arrived.reports[-1].line.workers


def test_shares_of_no_earlier_line_are_malformed():
    steps = control.StepReports(
        worker=0, reports=shorten_steps([build_report(4)], build_report(4).line.workers)
    )
    with pytest.raises(Malformed, match="step 4 has the shares of no earlier line"):
        complete_steps(steps, {})
