"""A later coordinator writes the ends of workers that an earlier one knew of, and did not write in time."""

import pytest

from elastane.run.coordinator.event_summary import summarize_events
from elastane.run.nouns.control import KillWorker, PeerLost, RunOver, WorkerFailed
from elastane.run.nouns.membership import NodeAddress
from elastane.run.nouns.records import EventLine
from elastane.run.nouns.silence_limits import LISTEN_S, SilenceLimits
from tests.run.unit.coordinator.test_nodes import let_other_nodes_be_lost

LIMITS = SilenceLimits()


def list_ends(stage) -> list[tuple[str, str]]:
    """Return the events of ends of workers, each with its reason."""
    return [(event.who, event.why) for event in stage.events if event.kind in {"worker.died", "worker.left"}]


def report_the_rest(stage) -> None:
    """Report the first node and its workers; its agent knows of no other node."""
    stage.report_agent(target=2, total=2, nodes=(NodeAddress(""),))
    for worker in sorted(stage.alive):
        stage.report_worker(worker)


def take_over(stage):
    """Return the next coordinator, after it has heard the first node and its workers."""
    successor = stage.start_successor(wait=False, agent=False)
    report_the_rest(successor)
    return successor


def pass_time(stage, seconds: float) -> None:
    """Let time pass in which the first node and its workers report."""
    for _ in range(int(seconds / 0.5)):
        stage.now += 0.5
        report_the_rest(stage)


def test_the_next_coordinator_records_the_deaths_with_a_node_that_the_last_one_had_lost(two_nodes) -> None:
    stage, _ = two_nodes
    let_other_nodes_be_lost(stage)
    stage.adopt()
    assert list_ends(stage) == []
    successor = take_over(stage)
    pass_time(successor, LISTEN_S + 1)
    why = "node b was lost; how it ended is not known"
    recorded = [("worker 100", why), ("worker 101", why)]
    assert list_ends(successor) == recorded
    pass_time(successor, LIMITS.limit_s + 2)
    assert list_ends(successor) == recorded
    after = take_over(successor)
    pass_time(after, LIMITS.limit_s + 2)
    assert list_ends(after) == []


def test_they_are_recorded_by_the_third_coordinator_if_the_second_one_dies_as_early(two_nodes) -> None:
    stage, _ = two_nodes
    let_other_nodes_be_lost(stage)
    stage.adopt()
    third = take_over(take_over(stage))
    pass_time(third, LISTEN_S + 1)
    assert [who for who, _ in list_ends(third)] == ["worker 100", "worker 101"]


def test_they_are_recorded_before_the_end_of_the_run(two_nodes) -> None:
    stage, _ = two_nodes
    let_other_nodes_be_lost(stage)
    stage.adopt()
    successor = take_over(stage)
    successor.receive(WorkerFailed(worker=0, traceback="KeyError: 'x'"))
    assert successor.list_kinds("worker.died", "run.failed") == ["worker.died", "worker.died", "run.failed"]
    assert successor.list_messages(RunOver)


def test_workers_whose_peers_lost_them_are_recorded_if_their_node_is_never_heard_again(two_nodes) -> None:
    stage, _ = two_nodes
    for peer in (100, 101):
        for worker in (0, 1):
            stage.receive(PeerLost(worker=worker, peer=peer))
    assert stage.newest.workers == (0, 1)
    stage.adopt()
    successor = take_over(stage)
    pass_time(successor, LIMITS.limit_s - 0.5)
    assert list_ends(successor) == []
    pass_time(successor, 2)
    why = "no node of the run has it any more; how it ended is not known"
    assert list_ends(successor) == [("worker 100", why), ("worker 101", why)]


@pytest.mark.parametrize("exits", [False, True])
def test_a_worker_of_a_lost_node_that_returns_has_one_end(two_nodes, exits) -> None:
    stage, node = two_nodes
    let_other_nodes_be_lost(stage)
    stage.adopt()
    successor = take_over(stage)
    node.stage = successor
    if exits:
        node.living = set()
    node.report()
    pass_time(successor, LISTEN_S + 1)
    assert {kill.worker for kill in successor.list_messages(KillWorker)} >= (set() if exits else {100, 101})
    assert [who for who, _ in list_ends(successor)] == ["worker 100", "worker 101"]


def test_a_joining_worker_of_a_living_node_has_not_ended(two_nodes) -> None:
    stage, node = two_nodes
    node.living |= {102}
    node.report()
    successor = stage.start_successor(wait=False, agent=False)
    node.stage = successor
    for _ in range(int((LIMITS.limit_s + 2) / 0.5)):
        successor.now += 0.5
        report_the_rest(successor)
        node.report()
        for worker in (100, 101):
            successor.report_worker(worker)
    assert list_ends(successor) == []
    assert successor.list_messages(KillWorker) == []


def test_the_log_tells_which_workers_of_this_attempt_have_no_end(two_nodes) -> None:
    stage, _ = two_nodes
    assert summarize_events(stage.written).unended == dict.fromkeys((0, 1, 100, 101), "")
    let_other_nodes_be_lost(stage)
    unended = {0: "", 1: "", 100: "node b", 101: "node b"}
    assert summarize_events(stage.written).unended == unended
    stage.adopt()
    stage.end_worker(1)
    del unended[1]
    assert summarize_events(stage.written).unended == unended
    resumed = EventLine(time=0.0, kind="run.resumed", who="elastane run")
    assert summarize_events([*stage.written, resumed]).unended == {}
