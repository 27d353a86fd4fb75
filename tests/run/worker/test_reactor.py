"""The reactor: which thread handles an event, and that none is lost between two threads."""

import threading
from types import SimpleNamespace

import pytest

from elastane.run.nouns.membership import Generation, Member
from elastane.run.protocol import actions, events
from elastane.run.worker.links.mesh import Mesh
from elastane.run.worker.reactor import RESULTS, Reactor
from tests.waiting import WAIT_S, wait_until

REACTOR, TRAINING = "elastane-reactor", "MainThread"


class RecordingMember:
    """Stands in for the member machine: it remembers each event with its thread, and answers one kind."""

    worker = 0
    works_in, complete, left = 0, True, False

    def __init__(self) -> None:
        self.generation: Generation | None = None
        self.handled: list[tuple[str, events.Event]] = []

    def handle(self, event: events.Event) -> list[actions.Action]:
        self.handled.append((threading.current_thread().name, event))
        if isinstance(event, events.GenerationProposed):
            self.generation = event.generation
        return [actions.ReleaseScript()] if isinstance(event, events.Applied) else []


@pytest.fixture
def mesh():
    made = Mesh(0, b"secret")
    yield made
    made.close()


@pytest.fixture
def reactor(mesh, monkeypatch):
    monkeypatch.setattr("elastane.run.worker.reactor.Payloads", lambda *_parts: SimpleNamespace(round=0))
    gradients = SimpleNamespace(slots=SimpleNamespace(sums_fd=-1))
    placement = SimpleNamespace(rooms=None, side_stream=None)
    state = SimpleNamespace(arena=SimpleNamespace(fd=-1), placement=placement)
    return Reactor(RecordingMember(), gradients, state, measure_norms=False, mesh=mesh)


def propose(reactor: Reactor, *workers: int) -> None:
    """Propose a generation and wait until the reactor's thread has begun it."""
    members = tuple(Member(worker, "127.0.0.1", 1) for worker in workers)
    handled = len(reactor.member.handled)
    reactor.post(events.GenerationProposed(Generation(1, 1, members, planned=False)))
    wait_until(lambda: len(reactor.member.handled) > handled, "the generation has begun")
    assert reactor.member.handled[-1][0] == REACTOR


def take(reactor: Reactor):
    directive = reactor.take_directive(WAIT_S)
    assert directive is not None
    return directive


def test_a_lone_worker_handles_its_results_when_it_takes_a_directive(reactor):
    propose(reactor, 0)
    reactor.post_result(events.Applied())
    assert reactor.take_directive(0.0) is None
    assert take(reactor) == actions.ReleaseScript()
    assert reactor.member.handled[1:] == [(TRAINING, events.Applied())]


@pytest.mark.parametrize("workers", [(), (0, 1)], ids=["no generation", "a peer"])
def test_the_thread_of_the_reactor_handles_results_while_there_are_peers(reactor, workers):
    if workers:
        propose(reactor, *workers)
    reactor.post_result(events.Applied())
    take(reactor)
    assert reactor.member.handled[-1] == (REACTOR, events.Applied())


def test_an_error_becomes_a_directive_on_either_thread(reactor, monkeypatch):
    propose(reactor, 0)
    monkeypatch.setattr(reactor.member, "handle", lambda _event: 1 / 0)
    reactor.post_result(events.Applied())
    assert isinstance(take(reactor).error, ZeroDivisionError)


def test_no_event_is_lost_while_peers_come_and_go(reactor):
    """Another thread proposes generations with and without a peer while this one trains."""
    turns, ended = 400, threading.Event()

    def propose_by_turns() -> None:
        turn = 0
        while not ended.wait(0.0002):
            turn += 1
            members = tuple(Member(worker, "127.0.0.1", 1) for worker in range(1 + turn % 2))
            reactor.post(events.GenerationProposed(Generation(turn, 1, members, planned=False)))

    other = threading.Thread(target=propose_by_turns)
    propose(reactor, 0)
    other.start()
    try:
        for _ in range(turns):
            reactor.post(events.StopRequested())
            reactor.post_result(events.Applied())
            assert take(reactor) == actions.ReleaseScript()
    finally:
        ended.set()
        other.join()
    handled = reactor.member.handled
    own = [event for _, event in handled if not isinstance(event, events.GenerationProposed)]
    assert own == [events.StopRequested(), events.Applied()] * turns
    # What may need the mesh is handled by the thread that drives it.
    assert {thread for thread, event in handled if not isinstance(event, RESULTS)} == {REACTOR}
