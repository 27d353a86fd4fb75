"""Steps need no control plane: coordinator, fork server and agent may die, and are replaced or followed."""

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from elastane.api.control import AskStatus
from elastane.api.errors import ElastaneError
from elastane.api.rundir import RunDir
from elastane.client.channel import ask

from .stage import SCRIPTS, alive, eventually, kill, member_states

pytestmark = pytest.mark.processes


def test_the_coordinator_dies(stage, assert_undisturbed):
    async def story(running):
        kill(await running.until_step(4), "coordinator")
        running.go()
        await running.until(lambda answer: answer.term == 2)

    ended = stage.play("--paced-from=5", story=story, start=2)
    assert_undisturbed(ended)
    assert len(ended.events("coordinator.died")) == 1
    assert ended.generation(30) == ended.generation(1)


def test_steps_are_made_while_there_is_no_coordinator(stage, assert_undisturbed):
    """Stopped, it hears nothing; the workers do not wait for it."""

    async def story(running):
        pid = kill(await running.until_step(4), "coordinator", number=signal.SIGSTOP)
        running.go()
        await waited_for(lambda: (running.run_dir.root / "dealt-1").read_text().count("\n30 "))
        os.kill(pid, signal.SIGCONT)

    assert_undisturbed(stage.play("--paced-from=5", story=story, start=2))


async def waited_for(done):
    await asyncio.to_thread(eventually, done, "the last step is dealt")


def test_the_coordinator_dies_together_with_a_worker(stage, assert_undisturbed):
    async def story(running):
        answer = await running.until_step(4)
        kill(answer, "worker", 1)
        kill(answer, "coordinator")
        running.go()

    ended = stage.play("--paced-from=5", story=story, start=3)
    assert_undisturbed(ended)
    assert "worker 1" in ended.who("worker.died")


@pytest.mark.parametrize("copies", [None, 2])
def test_the_coordinator_dies_while_a_worker_joins(stage, assert_undisturbed, copies):
    async def story(running):
        await running.until_step(4)
        await running.resize(3)
        await running.until_event("worker.ready", "worker 2")
        kill(await running.until_step(4), "coordinator")
        await running.until(lambda answer: answer.term == 2)
        await running.pace(lambda answer: 2 in member_states(answer))
        running.go()

    ended = stage.play("--paced-from=5", "--steps=60", story=story, start=2, copies=copies)
    assert_undisturbed(ended)
    assert ended.shares(60).keys() == {0, 1, 2}


def test_one_coordinator_after_the_other_dies(stage, assert_undisturbed):
    async def story(running):
        for term in range(1, 4):
            answer = await running.until(lambda answer, term=term: answer.term == term and answer.step >= 4)
            kill(answer, "coordinator")
        running.go()

    ended = stage.play("--paced-from=5", story=story, start=2)
    assert_undisturbed(ended)
    assert len(ended.events("coordinator.died")) == 3


def test_the_fork_server_dies_and_workers_come_from_the_next(stage, assert_undisturbed):
    async def story(running):
        kill(await running.until_step(4), "fork-server")
        await running.resize(3)
        await running.until_event("worker.ready", "worker 2")
        await running.pace(lambda answer: 2 in member_states(answer))
        running.go()

    ended = stage.play("--paced-from=5", story=story, start=2)
    assert_undisturbed(ended)
    assert ended.events("worker.died") == []


def test_with_the_agent_everything_ends(stage, tmp_path):
    """Nobody is left to end the workers: they notice by themselves."""
    command = [sys.executable, str(Path(__file__).with_name("lone_agent.py")), str(tmp_path / "run")]
    options = ["--", str(SCRIPTS / "training.py"), "--paced-from=5"]
    files = RunDir(tmp_path / "run")
    with subprocess.Popen([*command, *stage.commands.fork_server, *options]) as agent:
        try:
            # Coordinator, the one that stands by, fork server, two workers.
            eventually(lambda: len(read_pids(files, 4)) == 5, "four steps are made and somebody stands by")
            pids = read_pids(files, 4)
        finally:
            agent.kill()
    assert len(pids) == 5
    eventually(lambda: not any(map(alive, pids)), "every process of the run has ended")


def read_pids(files, step):
    try:
        answer = ask(files, AskStatus(), 1.0)
    except ElastaneError:
        return []
    return [row.pid for row in answer.processes if row.role != "agent"] if answer.step >= step else []
