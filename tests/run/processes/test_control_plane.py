"""Steps need no control plane: a dead coordinator or fork server is replaced, a dead agent ends the run."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from elastane.common.errors import ElastaneError
from elastane.run.agent.processes import Commands
from elastane.run.connections.coordinator_request import ask_coordinator
from elastane.run.nouns.control import AskStatus
from elastane.run.nouns.rundir import RunDir
from tests.waiting import wait_until, wait_until_async

from .stage import SCRIPTS, SHORT_SILENCE_S, find_members, is_alive, kill

pytestmark = pytest.mark.processes


def test_a_dead_coordinator_is_replaced_without_a_new_generation(stage, assert_equals_reference):
    async def disturb(run):
        kill(await run.wait_for_step(4), "coordinator")
        run.stop_pacing()
        await run.wait_until(lambda answer: answer.term == 2)

    ended = stage.play("--paced-from=5", disturb=disturb, start=2)
    assert_equals_reference(ended)
    assert len(ended.find_events("coordinator.died")) == 1
    assert ended.get_generation(30) == ended.get_generation(1)


def test_workers_do_not_wait_for_a_coordinator_that_has_stopped(stage, assert_equals_reference):

    async def disturb(run):
        pid = kill(await run.wait_for_step(4), "coordinator", number=signal.SIGSTOP)
        run.stop_pacing()
        await wait_for_work(lambda: (run.run_dir.root / "assigned-1").read_text().count("\n30 "))
        os.kill(pid, signal.SIGCONT)

    assert_equals_reference(stage.play("--paced-from=5", disturb=disturb, start=2))


async def wait_for_work(done):
    await wait_until_async(done, "worker 1 has begun the last step")


def test_a_coordinator_and_a_worker_may_die_together(stage, assert_equals_reference):
    async def disturb(run):
        answer = await run.wait_for_step(4)
        kill(answer, "worker", 1)
        kill(answer, "coordinator")
        run.stop_pacing()

    ended = stage.play("--paced-from=5", disturb=disturb, start=3)
    assert_equals_reference(ended)
    assert "worker 1" in ended.find_subjects("worker.died")


@pytest.mark.parametrize("copies", [None, 2])
def test_a_coordinator_may_die_while_a_worker_joins(stage, assert_equals_reference, copies):
    async def disturb(run):
        await run.wait_for_step(4)
        await run.resize(3)
        await run.wait_for_event("worker.ready", "worker 2")
        kill(await run.wait_for_step(4), "coordinator")
        await run.wait_until(lambda answer: answer.term == 2)
        await run.step_until(lambda answer: 2 in find_members(answer))
        run.stop_pacing()

    ended = stage.play("--paced-from=5", "--steps=60", disturb=disturb, start=2, copies=copies)
    assert_equals_reference(ended)
    assert ended.get_shares(60).keys() == {0, 1, 2}


def test_several_coordinators_may_die_one_after_the_other(stage, assert_equals_reference):
    async def disturb(run):
        for term in range(1, 4):
            answer = await run.wait_until(lambda answer, term=term: answer.term == term and answer.step >= 4)
            kill(answer, "coordinator")
        run.stop_pacing()

    ended = stage.play("--paced-from=5", disturb=disturb, start=2)
    assert_equals_reference(ended)
    assert len(ended.find_events("coordinator.died")) == 3


def test_new_workers_come_from_the_next_fork_server_when_one_dies(stage, assert_equals_reference):
    async def disturb(run):
        kill(await run.wait_for_step(4), "fork-server")
        await run.resize(3)
        await run.wait_for_event("worker.ready", "worker 2")
        await run.step_until(lambda answer: 2 in find_members(answer))
        run.stop_pacing()

    ended = stage.play("--paced-from=5", disturb=disturb, start=2)
    assert_equals_reference(ended)
    assert ended.find_events("worker.died") == []


def test_all_processes_of_a_run_end_when_its_agent_is_killed(stage, tmp_path):
    """No process is left to end the workers, so each ends by itself."""
    command = [sys.executable, str(Path(__file__).with_name("lone_agent.py")), str(tmp_path / "run")]
    options = ["--", str(SCRIPTS / "training.py"), "--paced-from=5"]
    files = RunDir(tmp_path / "run")
    with subprocess.Popen([*command, *stage.warm_client, *options]) as agent:
        try:
            # The coordinator, the standby coordinator, the fork server and two workers.
            wait_until(
                lambda: len(read_pids(files, 4)) == 5,
                "four steps are made and the standby coordinator is ready",
            )
            pids = read_pids(files, 4)
        finally:
            agent.kill()
    assert len(pids) == 5
    wait_until(lambda: not any(map(is_alive, pids)), "every process of the run has ended")


def read_pids(files, step):
    try:
        answer = ask_coordinator(files, AskStatus(), 1.0)
    except ElastaneError:
        return []
    return [row.pid for row in answer.processes if row.role != "agent"] if answer.step >= step else []


def test_a_coordinator_that_imports_for_longer_than_a_silence_is_not_replaced(stage, assert_equals_reference):
    """On a busy machine, or from a cold network disk, its imports take longer than any may be silent."""
    slow = ("/bin/sh", "-c", 'sleep 4; exec "$0" "$@"', *stage.commands.coordinator)
    ended = stage.play(
        listen="127.0.0.2", silence_s=SHORT_SILENCE_S, commands=Commands(slow, stage.commands.fork_server)
    )
    assert_equals_reference(ended)
    assert len(ended.find_events("coordinator.started")) == 1
    assert "takes charge" not in ended.read_log("coordinator")
