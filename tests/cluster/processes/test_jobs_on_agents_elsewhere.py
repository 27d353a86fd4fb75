"""Jobs on agents that an engine starts: all is real, but the engine starts processes of this machine."""

from collections.abc import Callable, Iterator

import pytest

from elastane.cluster.engines.local.engine import EngineDirectories
from elastane.run.attempts.verification import verify_run
from elastane.run.observability.run_files import read_run
from tests.waiting import WAIT_S, wait_until

from .process_engine import ProcessEngine
from .small_cluster import open_cluster, read_json, submit_training

pytestmark = [pytest.mark.processes, pytest.mark.early]
STEPS = 60


@pytest.fixture
def engine(stage, tmp_path) -> Iterator[ProcessEngine]:
    engine = ProcessEngine(stage.build_command("elastane.cli.main"), tmp_path / "agents")
    yield engine
    engine.end()


@pytest.fixture
def run_elastane(stage, tmp_path, monkeypatch, engine) -> Iterator[Callable]:
    with open_cluster(stage, tmp_path, monkeypatch, open_engine=lambda _: engine) as run:
        yield run


@pytest.fixture
def read_training(tmp_path) -> Callable:
    return lambda name: read_run(EngineDirectories(tmp_path / "home").get_run_dir(name))


def count_members(run_elastane, name: str) -> int:
    """Return how many workers of a job train now."""
    held = read_json(run_elastane, "describe", name)["observed"].get("held", {})
    return sum(part["workers"] - part.get("absent", 0) for part in held.values())


def wait_for_members(run_elastane, name: str, count: int) -> None:
    wait_until(lambda: count_members(run_elastane, name) == count, f"{count} workers train")


def wait_for_state(run_elastane, name: str, state: str) -> None:
    wait_until(lambda: read_json(run_elastane, "describe", name)["state"] == state, f"{name} has {state}")


def test_a_job_grows_shrinks_loses_a_machine_and_trains_the_same_bytes(
    run_elastane, engine, read_training, play_reference
):
    submit_training(run_elastane, "far", "--workers", "1:2", args=(f"--steps={STEPS}", "--seconds=0.05"))
    wait_for_members(run_elastane, "far", 2)
    run_elastane("scale", "far", "3")
    wait_for_members(run_elastane, "far", 3)
    run_elastane("scale", "far", "2")
    wait_for_members(run_elastane, "far", 2)
    *_, last = engine.agents
    assert engine.agents[last].wait(WAIT_S) == 0, engine.read_log(last)
    engine.kill(next(id_ for id_ in engine.agents if engine.agents[id_].poll() is None))
    wait_until(lambda: len(engine.agents) == 4, "another agent takes its place")
    wait_for_state(run_elastane, "far", "finished")
    run = read_training("far")
    assert [line.step for line in run.ledger] == [*range(1, STEPS + 1)]
    assert verify_run(run).problems == ()
    reference = play_reference(STEPS)
    assert [line.loss for line in run.ledger] == [line.loss for line in reference.run.ledger]
    assert run.ledger[-1].digest == reference.run.ledger[-1].digest
    wait_until(
        lambda: all(process.poll() is not None for process in engine.agents.values()), "all have ended"
    )
    # Only the killed one has not ended by itself.
    assert sorted(process.returncode for process in engine.agents.values()) == [-9, 0, 0, 0]
    assert {event.kind for event in run.events} >= {"node.joined", "node.left", "node.lost"}


@pytest.mark.parametrize("how", ["notice", "death"])
def test_a_job_goes_on_without_the_machine_on_which_it_began(run_elastane, engine, read_training, how):
    submit_training(run_elastane, "moved", "--workers", "2", args=(f"--steps={STEPS}", "--seconds=0.05"))
    wait_for_members(run_elastane, "moved", 2)
    (first,) = (id_ for id_ in engine.agents if "attempt 1 begins" in engine.read_log(id_))
    if how == "death":
        engine.kill(first)
    else:
        engine.agents[first].terminate()
        assert engine.agents[first].wait(WAIT_S) == 0, engine.read_log(first)
    wait_for_state(run_elastane, "moved", "finished")
    run = read_training("moved")
    assert [line.step for line in run.ledger] == [*range(1, STEPS + 1)]
    # It was one attempt, without a stop.
    assert {event.kind for event in run.events}.isdisjoint({"stop.requested", "run.stopped", "run.resumed"})
    assert read_json(run_elastane, "describe", "moved")["crashes"] == 0


def test_a_job_that_is_paused_goes_on_from_its_checkpoint_on_other_agents(
    run_elastane, engine, read_training
):
    options = ("--workers", "2", "--checkpoint-every", "5 steps")
    submit_training(run_elastane, "paused", *options, args=(f"--steps={STEPS}", "--seconds=0.05"))
    wait_for_members(run_elastane, "paused", 2)
    run_elastane("pause", "paused", "--wait")
    assert [process.wait(WAIT_S) for process in engine.agents.values()] == [0, 0]
    run_elastane("resume", "paused")
    wait_for_state(run_elastane, "paused", "finished")
    run = read_training("paused")
    assert [line.step for line in run.ledger] == [*range(1, STEPS + 1)]
    assert len(engine.agents) == 4
    assert [event.kind for event in run.events].count("run.resumed") == 1


def test_a_job_whose_script_fails_says_so(run_elastane, engine):
    submit_training(run_elastane, "wrong", args=("--no-such-option",))
    wait_for_state(run_elastane, "wrong", "failed")
    assert "unrecognized arguments: --no-such-option" in run_elastane("explain", "wrong").stdout
