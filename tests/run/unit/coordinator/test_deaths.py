"""Every death is recorded once, with its cause if it is known."""

import pytest

from elastane.run.coordinator.deaths import LAST_WORD_S, describe_exit
from elastane.run.nouns.control import CANNOT_GO_ON, KillWorker, PeerLost, RunOver, WorkerExit, WorkerFailed
from elastane.run.nouns.silence_limits import LISTEN_S


def lose(stage, peer: int, *workers: int) -> None:
    """Let these workers report that they have lost their connections to a peer."""
    for worker in workers:
        stage.receive(PeerLost(worker=worker, peer=peer))


def list_deaths(stage) -> list[tuple[str, str, str]]:
    return [
        (event.kind, event.who, event.why)
        for event in stage.events
        if event.kind in {"worker.died", "worker.hung", "worker.failed", "worker.left"}
    ]


def test_survivors_regroup_at_a_lost_connection_and_the_event_has_the_agents_cause(training) -> None:
    stage = training(3)
    first_report_s = stage.now
    lose(stage, 1, 0, 2)
    assert stage.newest.workers == (0, 2)
    assert stage.list_messages(KillWorker) == [KillWorker(worker=1)]
    assert list_deaths(stage) == []
    stage.wait(0.02)
    stage.end_worker(1)
    assert list_deaths(stage) == [("worker.died", "worker 1", "killed by SIGKILL")]
    assert stage.events[-1].time == first_report_s
    assert stage.events[-1].generation == 1


def test_without_a_report_of_the_agent_the_event_is_written_after_a_while(training) -> None:
    stage = training(3)
    lose(stage, 1, 2)
    stage.wait(LAST_WORD_S - 0.1)
    assert list_deaths(stage) == []
    stage.wait(0.1)
    recorded = [("worker.died", "worker 1", "worker 2 lost its connection to it; how it ended is not known")]
    assert list_deaths(stage) == recorded
    stage.end_worker(1, hung=True)
    assert list_deaths(stage) == recorded


def test_a_hung_worker_is_recorded_as_hung_even_if_its_peers_noticed_first(training) -> None:
    stage = training(2)
    lose(stage, 1, 0)
    stage.alive.discard(1)
    ended = WorkerExit(worker=1, pid=101, code=-9, hung=True, why="hung: no heartbeat for 2.1 s")
    stage.exits.append(ended)
    stage.report_agent()
    assert list_deaths(stage) == [("worker.hung", "worker 1", "hung: no heartbeat for 2.1 s")]


def test_the_end_of_a_script_ends_the_run_even_if_peers_noticed_first(training) -> None:
    stage = training(3)
    lose(stage, 1, 0, 2)
    stage.end_worker(1, 3)
    assert list_deaths(stage) == []
    stage.wait(0.6)
    assert list_deaths(stage) == [("worker.died", "worker 1", "exit code 3")]
    assert "exit code 3" in stage.list_messages(RunOver)[0].why


@pytest.mark.parametrize("exited_first", [False, True])
def test_a_failure_is_recorded_as_a_failure_only(training, exited_first) -> None:
    stage = training(2)
    lose(stage, 1, 0)
    if exited_first:
        stage.end_worker(1, 1)
    stage.receive(WorkerFailed(worker=1, traceback="KeyError: 'x'"))
    assert list_deaths(stage) == [("worker.failed", "worker 1", "KeyError: 'x'")]


def test_the_end_of_the_run_records_pending_deaths_at_once(training) -> None:
    stage = training(3)
    lose(stage, 1, 0, 2)
    stage.receive(WorkerFailed(worker=2, traceback="KeyError: 'x'"))
    assert stage.list_kinds("worker.died", "run.failed") == ["worker.died", "run.failed"]


def test_the_next_coordinator_records_a_death_that_the_last_one_had_not(training) -> None:
    stage = training(3)
    lose(stage, 1, 0, 2)
    stage.adopt()
    successor = stage.start_successor()
    assert list_deaths(successor) == []
    successor.end_worker(1)
    assert list_deaths(successor) == [("worker.died", "worker 1", "killed by SIGKILL")]
    assert list_deaths(successor.start_successor()) == []


def test_a_recorded_death_is_not_recorded_again_after_a_lost_connection(training) -> None:
    stage = training(3)
    stage.end_worker(1)
    # The peers report to the next coordinator before the agent does.
    successor = stage.start_successor(agent=False)
    lose(successor, 1, 0, 2)
    successor.wait(LISTEN_S)
    successor.wait(LAST_WORD_S)
    assert successor.list_messages(KillWorker) == [KillWorker(worker=1)]
    assert list_deaths(successor) == []


def test_a_living_worker_that_peers_lost_is_dismissed_after_its_event_is_written(training) -> None:
    stage = training(3)
    lose(stage, 1, 0, 2)
    stage.report_worker(1)
    assert stage.list_dismissals() == {}
    stage.wait(LAST_WORD_S)
    stage.report_worker(1)
    assert stage.list_dismissals() == {1: 1}
    successor = stage.start_successor()
    successor.end_worker(1, 1)
    successor.wait(1)
    assert successor.list_messages(RunOver) == []


def test_a_dead_thread_of_elastane_ends_its_worker_and_not_the_run(training) -> None:
    stage = training(3)
    stage.end_worker(1, CANNOT_GO_ON)
    stage.wait(1)
    assert stage.newest.workers == (0, 2)
    assert stage.list_messages(RunOver) == []


@pytest.mark.parametrize(
    ("code", "how"),
    [
        (-9, "killed by SIGKILL"),
        (-40, "killed by signal 40"),
        (0, "exit code 0"),
        (3, "exit code 3"),
        (CANNOT_GO_ON, "a thread of Elastane died in it, see logs/worker-0.log"),
    ],
)
def test_an_exit_has_a_description(code, how) -> None:
    assert describe_exit(WorkerExit(worker=0, pid=1, code=code)) == how
