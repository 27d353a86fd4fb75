"""A machine whose workers never join gets no further ones, and takes no place from the others."""

import msgspec
import pytest

from elastane.run.nouns.control import AskResize, RunOver, SetTarget, WorkerExit, WorkerFailed
from elastane.run.nouns.silence_limits import SilenceLimits
from tests.run.unit.coordinator.conftest import PINNED, OtherNode
from tests.run.unit.coordinator.test_nodes import list_targets

LIMITS = SilenceLimits()

MISFIT = msgspec.structs.replace(PINNED, versions={"torch": "1"})


def start_workers(node: OtherNode) -> list[int]:
    """Start the workers that a node's agent lacks, as an agent does at once."""
    started = []
    while len(node.living) < node.order.target:
        first, end = node.numbers[-1]
        node.numbers = (*node.numbers[:-1], (first + 1, end))
        node.living.add(first)
        started.append(first)
    node.report()
    return started


def end_worker(node: OtherNode, worker: int, code: int = 1) -> None:
    node.living.discard(worker)
    node.exits = (*node.exits, WorkerExit(worker=worker, pid=worker, code=code))
    node.report()


def refuse_workers(node: OtherNode, most: int = 10) -> int:
    """Let a node start workers until it is told to start no more; all are refused. Return their number."""
    for count in range(most):
        if node.order.closed or not (start_workers(node) or node.living):
            return count
        worker = min(node.living)
        node.stage.report_worker(worker, pinned=MISFIT, node=node.name)
        end_worker(node, worker)
    raise AssertionError("the node is not closed")


@pytest.fixture
def beside_an_unfit_node(training):
    """Return a run of two workers that two nodes join: b does not fit, and c has started its workers."""
    stage = training(2)
    unfit, fit = OtherNode(stage, "b", slots=2), OtherNode(stage, "c", slots=2)
    for node in (unfit, fit):
        node.report()
        node.report()
    start_workers(fit)
    return stage, unfit, fit


def test_three_refused_workers_of_one_node_cost_the_others_nothing(beside_an_unfit_node) -> None:
    stage, unfit, fit = beside_an_unfit_node
    assert refuse_workers(unfit) == 3
    (event,) = [event for event in stage.events if event.kind == "node.closed"]
    assert event.who == "node b"
    assert "3 in a row ended before they joined" in event.why
    assert "torch" in event.why
    assert unfit.order.closed == event.why
    assert stage.roster.wanted.target == 4
    assert list_targets(stage) == {"": 2, "b": 0, "c": 2}
    # Those that the node started meanwhile are dismissed, and not those of the other one.
    assert set(stage.list_dismissals()) <= {*range(100, 200)}
    for worker in sorted(fit.living):
        stage.report_worker(worker, state="ready", pinned=PINNED, node="c")
    while len(stage.newest.workers) < 4:
        stage.adopt()
    assert stage.newest.workers == (0, 1, *sorted(fit.living))


def test_failures_of_several_nodes_do_not_add_up(beside_an_unfit_node) -> None:
    stage, unfit, fit = beside_an_unfit_node
    for node in (unfit, fit):
        for _ in range(2):
            start_workers(node)
            end_worker(node, min(node.living))
    assert stage.list_kinds("node.closed", "resize.requested") == []
    assert stage.roster.wanted.target == 6


def test_a_node_keeps_the_workers_that_have_joined(training) -> None:
    stage = training(1)
    node = OtherNode(stage, "b", slots=2)
    node.report()
    node.report()
    kept, _ = start_workers(node)
    stage.report_worker(kept, state="ready", pinned=PINNED, node="b")
    stage.adopt()
    stage.adopt()
    for _ in range(3):
        end_worker(node, max(node.living - {kept}))
        start_workers(node)
    assert list_targets(stage) == {"": 1, "b": 1}
    assert node.order.closed
    assert kept not in stage.list_dismissals()
    assert set(stage.list_dismissals()) == node.living - {kept}


def test_the_last_node_fails_the_run_as_on_one_machine(open_stage) -> None:
    stage = open_stage(start=1)
    stage.report_agent(slots=0, target=0)
    nodes = [OtherNode(stage, name, slots=1) for name in "bc"]
    for node in nodes:
        node.report()
        node.report()
    for node in nodes:
        assert stage.list_messages(RunOver) == []
        while not node.order.closed and not stage.list_messages(RunOver):
            start_workers(node)
            end_worker(node, min(node.living))
    (over,) = stage.list_messages(RunOver)
    assert "3 workers in a row ended before they joined" in over.why
    assert stage.list_kinds("node.closed") == ["node.closed"]


def test_the_others_begin_without_a_node_of_which_no_worker_joins(open_stage) -> None:
    stage = open_stage(start=2)
    stage.report_agent(slots=1, target=1, total=0)
    stage.alive = {0}
    unfit = OtherNode(stage, "b", slots=1)
    unfit.report()
    unfit.report()
    stage.report_agent(slots=1, target=1)
    stage.report_worker(0, state="ready", pinned=PINNED)
    refuse_workers(unfit)
    assert stage.newest.workers == (0,)
    assert stage.roster.wanted.target == 1


def test_an_error_on_one_node_before_the_run_begins_leaves_it_to_the_others(open_stage) -> None:
    stage = open_stage(start=2)
    stage.report_agent(slots=0, target=0, total=0)
    nodes = [OtherNode(stage, name, slots=1) for name in "bc"]
    for node in nodes:
        node.report()
        node.report()
        for worker in start_workers(node):
            stage.report_worker(worker, node=node.name)
    stage.receive(WorkerFailed(worker=100, traceback="FileNotFoundError: data"))
    assert stage.list_messages(RunOver) == []
    # The same on all machines is an error of the script.
    stage.receive(WorkerFailed(worker=200, traceback="FileNotFoundError: data"))
    (over,) = stage.list_messages(RunOver)
    assert over.traceback == "FileNotFoundError: data"


def test_a_resize_tries_a_closed_node_again(beside_an_unfit_node) -> None:
    stage, unfit, _ = beside_an_unfit_node
    refuse_workers(unfit)
    stage.actions.clear()
    stage.ask(AskResize(workers=6))
    unfit.follow(stage.actions)
    assert (unfit.order.closed, unfit.order.target) == ("", 2)


def test_the_next_coordinator_keeps_a_node_closed(beside_an_unfit_node) -> None:
    stage, unfit, fit = beside_an_unfit_node
    refuse_workers(unfit)
    after = stage.start_successor()
    for node in (unfit, fit):
        node.stage = after
        node.report()
    after.wait(1.0)
    unfit.report()
    assert unfit.order.closed == stage.roster.nodes.closed["b"]
    assert after.roster.nodes.closed == stage.roster.nodes.closed
    assert [order for order in after.list_messages(SetTarget) if order.closed and order.target] == []


def test_a_closed_node_gets_workers_again_when_no_other_one_can(open_stage) -> None:
    stage = open_stage(start=1)
    stage.report_agent(slots=0, target=0, total=0)
    unfit, fit = OtherNode(stage, "b", slots=1), OtherNode(stage, "c", slots=1)
    for node in (unfit, fit):
        node.report()
        node.report()
    refuse_workers(unfit)
    assert unfit.order.closed
    fit.report(leaving=True)
    stage.now += LIMITS.limit_s
    stage.report_agent(slots=0, target=0)
    unfit.report()
    assert (unfit.order.closed, unfit.order.target) == ("", 1)
