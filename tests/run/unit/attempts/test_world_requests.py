"""Requests to an unmodified script, its failures, and the ports of its worlds."""

import json

import pytest

from elastane.run.coordinator.refusals import find_refusal
from elastane.run.nouns.control import Ask, AskCheckpoint, AskDrain, AskEvict, AskResize, AskStatus, AskStop
from elastane.run.nouns.rundir import RunDir
from elastane.run.nouns.spec import RunSpec, TorchrunContract
from elastane.run.scripts.agent.failure_report import find_error_file, read_failure
from elastane.run.scripts.agent.status import build_world_status, describe_changeable, describe_world
from elastane.run.scripts.worlds.decisions import advance
from elastane.run.scripts.worlds.messages import (
    RankExited,
    ServerReady,
    WorldGone,
)
from elastane.run.scripts.worlds.state import LocalRank, World, WorldRules

SPEC = RunSpec(
    name="trial", script="/train.py", max_workers=4, contract=TorchrunContract(processes=2, grace_s=5.0)
)


def find_world_refusal(world: World, ask: Ask) -> str:
    return find_refusal(describe_changeable(world), SPEC, ask)


def start_world(workers: int = 2) -> World:
    world = World(WorldRules(processes=2, grace_s=5.0), target=workers)
    return advance(world, [ServerReady()], 0.0)[0]


@pytest.mark.parametrize(
    ("ask", "refusal"),
    [
        (AskStatus(), ""),
        (AskStop(), ""),
        (AskEvict(), ""),
        (AskResize(workers=4), ""),
        (AskResize(workers=5), "5 workers are outside this run's limits: choose 1 to 4"),
        (AskResize(workers=5, limits=(1, 6)), ""),
        (AskDrain(worker=1), ""),
        (AskDrain(worker=7), "no worker 7 in this run; running: 0, 1"),
    ],
)
def test_a_request_is_refused_in_words_or_accepted(ask, refusal):
    assert find_world_refusal(start_world(), ask) == refusal


def test_a_checkpoint_is_left_to_the_script():
    assert "its script writes its own snapshots" in find_refusal(
        describe_changeable(start_world()), SPEC, AskCheckpoint()
    )


def test_a_run_that_ends_accepts_no_change():
    world, _ = advance(start_world(), [AskStop()], 1.0)
    assert find_world_refusal(world, AskResize(workers=3)).startswith("the run is ending")
    ends = [RankExited(1, rank, 0) for rank in world.ranks]
    over, _ = advance(world, [*ends, WorldGone(1)], 2.0)
    assert find_world_refusal(over, AskStop()) == "the run is over: stopped by request"


def test_a_user_decides_before_a_controller():
    world, _ = advance(start_world(), [AskResize(workers=3)], 1.0)
    ask = AskResize(workers=2, limits=(1, 4), unless_by_hand=True)
    assert find_world_refusal(world, ask) == "a user has set its number of workers"


def test_the_status_counts_workers_by_their_first_process():
    world = start_world()
    pids = {rank: 100 + number for number, rank in enumerate(world.ranks)}
    status = build_world_status(world, SPEC, pids, ())
    assert [(row.worker, row.pid, row.state) for row in status.processes] == [
        (0, 100, "member"),
        (0, 101, "rank 1"),
        (1, 102, "member"),
        (1, 103, "rank 3"),
    ]
    assert (status.target, status.generation, status.state) == (2, 1, "training")


def test_the_state_of_a_run_is_one_word():
    world = start_world()
    assert describe_world(World(WorldRules(), target=1), ()) == "starting"
    finishing, _ = advance(world, [RankExited(1, LocalRank(0, 0), 0)], 1.0)
    assert describe_world(finishing, finishing.ranks) == "finishing"
    changing, _ = advance(world, [AskResize(workers=3)], 1.0)
    assert describe_world(changing, changing.ranks) == "changing"
    stopping, _ = advance(world, [AskStop()], 1.0)
    assert describe_world(stopping, stopping.ranks) == "stopping"


@pytest.fixture
def files(tmp_path) -> RunDir:
    (tmp_path / "logs").mkdir()
    return RunDir(tmp_path)


def test_a_failure_is_read_from_the_error_file_first(files):
    files.log("worker-0").write_text("Traceback (most recent call last):\nKeyError: 1\n")
    assert read_failure(files, "worker-0", 1).endswith("KeyError: 1")
    message = {"message": "ValueError: 2", "extraInfo": {"py_callstack": "the stack", "timestamp": "3"}}
    find_error_file(files, "worker-0", 1).write_text(json.dumps({"message": message}))
    assert read_failure(files, "worker-0", 1) == "the stack"
    assert read_failure(files, "worker-0", 2).endswith("KeyError: 1")


@pytest.mark.parametrize("content", ["", "[1]", '{"message": 3}', "{" * 5000, "\x1b[31m"])
def test_a_damaged_error_file_costs_only_itself(files, content):
    files.log("worker-0").write_text("no traceback\n\x1b[2J here\n")
    find_error_file(files, "worker-0", 1).write_text(content)
    assert read_failure(files, "worker-0", 1) == "no traceback\n\\x1b[2J here"


def test_a_world_trains_once_all_of_its_processes_run():
    world = start_world()
    pids = {rank: 100 + number for number, rank in enumerate(world.ranks)}
    assert build_world_status(world, SPEC, pids, ()).state == "training"
    pids.popitem()
    assert build_world_status(world, SPEC, pids, ()).state == "changing"
