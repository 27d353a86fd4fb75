"""Signals that announce an end reach all processes of a run, or one: the work goes on to a commit."""

import asyncio
import os
import signal
import sys

import pytest

from elastane.run.agent.processes import Child
from elastane.run.nouns.checkpoints import format_checkpoint_name
from elastane.run.nouns.control import AskStatus
from elastane.run.nouns.notices import NOTICES

from .attempts import find_run_processes
from .stage import find_members, get_pid

pytestmark = pytest.mark.processes
ALONE = ["coordinator", "fork-server"]


@pytest.mark.parametrize(
    ("number", "script"),
    [
        (signal.SIGTERM, ("training.py",)),
        (signal.SIGUSR1, ("training.py",)),
        (signal.SIGUSR2, ("data_sources.py", "loaders")),
    ],
    ids=["SIGTERM", "SIGUSR1", "SIGUSR2-loaders"],
)
def test_a_notice_to_all_processes_twice_ends_the_run_with_a_checkpoint(
    attempts, assert_attempts_equal_reference, number, script
):
    program, *args = script
    attempts.begin("--start=2", "--checkpoint-every=1 h", script=program, args=(*args, "--paced-from=10"))
    attempts.wait_for_step(9)
    for _ in range(2):
        for pid in find_run_processes(attempts.run_dir):
            os.kill(pid, number)
    attempts.wait_for_event("stop.requested")
    attempts.touch("gates")
    assert attempts.wait_for_exit() == 130, attempts.describe()
    (stopped,) = attempts.find_events("run.stopped")
    assert attempts.list_complete_checkpoints() == [format_checkpoint_name(stopped.step)]
    assert len(attempts.find_events("stop.requested")) == 1
    assert attempts.find_events("worker.died", "worker.failed", "worker.hung", "drain.requested") == []
    assert len(attempts.find_events("coordinator.started")) == 1
    if program == "training.py":
        attempts.resume("--start=1")
        assert_attempts_equal_reference(attempts.wait_for_end())


def test_a_worker_with_a_notice_of_its_own_leaves_and_is_replaced(stage, assert_equals_reference):
    async def disturb(run):
        await run.wait_for_step(4)
        os.kill(run.agent.workers.living[1], signal.SIGTERM)
        await run.wait_for_event("drain.requested", "worker 1")
        await run.step_until(lambda answer: find_members(answer) == {0, 2})
        run.stop_pacing()

    ended = stage.play("--paced-from=5", disturb=disturb, start=2)
    assert_equals_reference(ended)
    assert ended.find_subjects("drain.requested") == ["worker 1"]
    assert ended.find_subjects("worker.left")[0] == "worker 1"
    assert ended.find_events("worker.died") == []


def test_the_only_worker_hands_over_after_a_notice(stage, assert_equals_reference):
    async def disturb(run):
        await run.wait_for_step(4)
        os.kill(run.agent.workers.living[0], signal.SIGTERM)
        await run.wait_for_event("worker.ready", "worker 1")
        await run.step_until(lambda answer: find_members(answer) == {1})
        run.stop_pacing()

    ended = stage.play("--paced-from=5", disturb=disturb)
    assert_equals_reference(ended)
    assert ended.find_events("worker.died") == []


def test_processes_that_only_serve_withstand_notices(stage, assert_equals_reference):
    async def disturb(run):
        await run.wait_for_step(4)
        answer = await run.wait_until(lambda answer: get_state_of_standby(answer) == "standby")
        for process in answer.processes:
            if process.role in ALONE:
                for number in NOTICES:
                    os.kill(process.pid, number)
        await run.step_until(lambda answer: answer.step >= 7)
        later = await run.ask(AskStatus())
        assert [get_pid(later, role) for role in ALONE] == [get_pid(answer, role) for role in ALONE]
        run.stop_pacing()

    ended = stage.play("--paced-from=5", disturb=disturb, start=2)
    assert_equals_reference(ended)
    assert len(ended.find_events("coordinator.started")) == 1


def get_state_of_standby(answer):
    return next((row.state for row in answer.processes if row.state == "standby"), "")


def test_a_process_that_still_imports_withstands_notices(tmp_path):
    """They stay blocked until it has got to its first line."""
    code = (
        "import sys; sys.stdin.readline()\n"
        "from elastane.run.nouns.notices import withstand_notices\n"
        "withstand_notices()\n"
        "sys.exit(7)\n"
    )

    async def start() -> int:
        child = Child((sys.executable, "-P", "-c", code), tmp_path / "log", pass_fds=(), pipe_in=True)
        for number in NOTICES:
            os.kill(child.pid, number)
        child.write_line(b"")
        try:
            return await child.wait()
        finally:
            child.close()

    assert asyncio.run(start()) == 7
