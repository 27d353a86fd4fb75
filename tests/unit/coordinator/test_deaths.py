"""Every death is told once, with how the process ended where anybody knows."""

import pytest

from elastane.api.control import CANNOT_GO_ON, KillWorker, PeerLost, RunOver, WorkerExit, WorkerFailed
from elastane.coordinator.deaths import LAST_WORD_S, describe_exit
from elastane.coordinator.decide import LISTEN_S


def lost(worker: int, peer: int, generation: int = 1) -> PeerLost:
    return PeerLost(worker=worker, peer=peer, generation=generation)


def deaths(stage) -> list[tuple[str, str, str]]:
    return [
        (event.kind, event.who, event.why)
        for event in stage.events
        if event.kind in {"worker.died", "worker.hung", "worker.failed", "worker.left"}
    ]


def test_survivors_regroup_at_a_peers_word_and_the_agents_word_is_written_down(training) -> None:
    stage = training(3)
    first_news = stage.now
    stage.hear(lost(0, 1))
    assert stage.newest.workers == (0, 2)
    assert stage.told(KillWorker) == [KillWorker(worker=1)]
    assert deaths(stage) == []
    stage.wait(0.02)
    stage.exit(1)
    assert deaths(stage) == [("worker.died", "worker 1", "killed by SIGKILL")]
    assert stage.events[-1].time == first_news
    assert stage.events[-1].generation == 1


def test_without_a_word_of_the_agent_what_is_known_is_written_down_and_nothing_after_it(training) -> None:
    stage = training(3)
    stage.hear(lost(2, 1))
    stage.wait(LAST_WORD_S - 0.1)
    assert deaths(stage) == []
    stage.wait(0.1)
    told = [("worker.died", "worker 1", "worker 2 lost its connection to it; how it ended is not known")]
    assert deaths(stage) == told
    stage.exit(1, hung=True)
    assert deaths(stage) == told


def test_who_is_hung_is_hung_even_when_its_peers_notice_its_end_first(training) -> None:
    stage = training(2)
    stage.hear(lost(0, 1))
    stage.alive.discard(1)
    ended = WorkerExit(worker=1, pid=101, code=-9, hung=True, why="hung: no heartbeat for 2.1 s")
    stage.exits.append(ended)
    stage.agent()
    assert deaths(stage) == [("worker.hung", "worker 1", "hung: no heartbeat for 2.1 s")]


def test_a_script_that_ended_is_found_out_though_its_peers_noticed_first(training) -> None:
    stage = training(3)
    stage.hear(lost(0, 1))
    stage.exit(1, 3)
    assert deaths(stage) == []
    stage.wait(0.6)
    assert deaths(stage) == [("worker.died", "worker 1", "exit code 3")]
    assert "exit code 3" in stage.told(RunOver)[0].why


@pytest.mark.parametrize("exited_first", [False, True])
def test_a_failure_is_told_as_a_failure_only(training, exited_first) -> None:
    stage = training(2)
    stage.hear(lost(0, 1))
    if exited_first:
        stage.exit(1, 1)
    stage.hear(WorkerFailed(worker=1, traceback="KeyError: 'x'"))
    assert deaths(stage) == [("worker.failed", "worker 1", "KeyError: 'x'")]


def test_the_end_of_the_run_waits_for_nobody_and_loses_no_death(training) -> None:
    stage = training(3)
    stage.hear(lost(0, 1))
    stage.hear(WorkerFailed(worker=2, traceback="KeyError: 'x'"))
    assert stage.kinds("worker.died", "run.failed") == ["worker.died", "run.failed"]


def test_a_death_the_last_coordinator_had_not_told_is_told_by_the_next(training) -> None:
    stage = training(3)
    stage.hear(lost(0, 1))
    stage.adopt()
    heir = stage.successor()
    assert deaths(heir) == []
    heir.exit(1)
    assert deaths(heir) == [("worker.died", "worker 1", "killed by SIGKILL")]
    assert deaths(heir.successor()) == []


def test_a_death_on_record_is_not_recorded_again_at_the_word_of_a_peer(training) -> None:
    stage = training(3)
    stage.exit(1)
    # The next coordinator hears from the peers first: the agent has not connected to it yet.
    heir = stage.successor(agent=False)
    heir.hear(lost(0, 1))
    heir.wait(LISTEN_S)
    heir.wait(LAST_WORD_S)
    assert heir.told(KillWorker) == [KillWorker(worker=1)]
    assert deaths(heir) == []


def test_one_that_lives_though_its_peers_lost_it_is_told_to_go_once_that_is_on_record(training) -> None:
    stage = training(3)
    stage.hear(lost(0, 1))
    stage.worker(1)
    assert stage.dismissed() == {}
    stage.wait(LAST_WORD_S)
    stage.worker(1)
    assert stage.dismissed() == {1: 1}
    heir = stage.successor()
    heir.exit(1, 1)
    heir.wait(1)
    assert heir.told(RunOver) == []


def test_a_thread_of_ours_that_dies_ends_its_worker_and_not_the_run(training) -> None:
    stage = training(3)
    stage.exit(1, CANNOT_GO_ON)
    stage.wait(1)
    assert stage.newest.workers == (0, 2)
    assert stage.told(RunOver) == []


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
def test_an_end_has_a_name(code, how) -> None:
    assert describe_exit(WorkerExit(worker=0, pid=1, code=code)) == how
