"""A real agent with a real coordinator; only the training is missing (see ``small_server.py``)."""

import asyncio
import os
import signal
import sys
from pathlib import Path

import msgspec
import pytest

from elastane.agent import coordinators
from elastane.agent.agent import Agent
from elastane.agent.processes import Commands
from elastane.agent.restarts import MOST_DEATHS
from elastane.api.control import Answer, Ask, AskDrain, AskResize, AskStatus
from elastane.api.errors import NoSuchRun
from elastane.api.records import EventLine
from elastane.api.rundir import RunDir
from elastane.api.spec import RunRecord, RunSpec
from elastane.client.channel import ask

pytestmark = pytest.mark.processes

SMALL = (sys.executable, "-P", str(Path(__file__).with_name("small_server.py")))
WAIT_S = 30


class Running:
    """A run in a temporary directory, asked and disturbed from outside."""

    def __init__(self, root: Path, commands: Commands, **wishes: int) -> None:
        self.run_dir = RunDir(root)
        spec = RunSpec(name="n", script="train.py", **wishes)
        self.run_dir.logs.mkdir()
        self.run_dir.run.write_bytes(
            msgspec.json.encode(RunRecord(spec=spec, created="2026-01-01T00:00:00Z"))
        )
        self.run_dir.secret.write_text("secret")
        self.agent = Agent(self.run_dir, spec, commands)

    async def ask(self, question: Ask) -> Answer:
        return await asyncio.to_thread(ask, self.run_dir, question, WAIT_S)

    async def until(self, done) -> Answer:
        async with asyncio.timeout(WAIT_S):
            while True:
                try:
                    answer = await self.ask(AskStatus())
                except NoSuchRun:
                    answer = None
                if answer is not None and done(answer):
                    return answer
                await asyncio.sleep(0.02)

    def events(self) -> list[EventLine]:
        lines = self.run_dir.events.read_bytes().splitlines()
        return [msgspec.json.decode(line, type=EventLine) for line in lines]

    def kinds(self) -> list[str]:
        return [event.kind for event in self.events()]


def members(answer: Answer) -> set[int | None]:
    """Workers that work in the newest generation."""
    return {
        row.worker
        for row in answer.processes
        if row.state == "member" and row.generation == answer.generation and answer.state == "training"
    }


def pid_of(answer: Answer, role: str, worker: int | None = None) -> int:
    return next(row.pid for row in answer.processes if row.role == role and row.worker == worker)


def standby_of(answer: Answer) -> int | None:
    return next((row.pid for row in answer.processes if row.state == "standby"), None)


def alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state != "Z"


@pytest.fixture
def staged(tmp_path, monkeypatch):
    # The command line takes the lock; here nobody does.
    monkeypatch.setattr("elastane.client.channel.is_live", lambda run_dir: run_dir.endpoint.exists())

    def play(
        story,
        *,
        fork_server: tuple[str, ...] = SMALL,
        coordinator: tuple[str, ...] = Commands().coordinator,
        **wishes: int,
    ):
        running = Running(tmp_path, Commands(coordinator, fork_server), **wishes)

        async def both():
            task = asyncio.create_task(running.agent.run())
            try:
                await story(running)
                async with asyncio.timeout(WAIT_S):
                    return await task
            finally:
                if not task.done():
                    running.agent.kill()
                    await task

        over = asyncio.run(both())
        return over, running

    return play


def test_a_run_is_started_stopped_and_leaves_no_process_behind(staged) -> None:
    pids = []

    async def story(running) -> None:
        answer = await running.until(lambda answer: members(answer) == {0, 1} and standby_of(answer))
        pids.extend(row.pid for row in answer.processes if row.role != "agent")
        running.agent.stop()

    over, running = staged(story, start=2)
    assert over.code == 130
    assert len(pids) == 5
    assert [pid for pid in pids if alive(pid)] == []
    assert running.kinds()[-1] == "run.stopped"
    assert not running.run_dir.endpoint.exists()


def test_a_killed_worker_is_replaced_under_a_new_number(staged) -> None:
    async def story(running) -> None:
        answer = await running.until(lambda answer: members(answer) == {0, 1})
        os.kill(pid_of(answer, "worker", 1), signal.SIGKILL)
        await running.until(lambda answer: members(answer) == {0, 2})
        running.agent.stop()

    _, running = staged(story, start=2)
    (died,) = [event for event in running.events() if event.kind == "worker.died"]
    assert (died.who, died.why) == ("worker 1", "killed by SIGKILL")


def test_a_worker_without_heartbeats_in_a_step_is_ended(staged) -> None:
    async def story(running) -> None:
        await running.until(lambda answer: members(answer) == {0, 1})
        (running.run_dir.root / "hang-1").touch()
        await running.until(lambda answer: members(answer) == {0, 2})
        running.agent.stop()

    _, running = staged(story, start=2)
    assert [event.who for event in running.events() if event.kind == "worker.hung"] == ["worker 1"]


def test_the_run_grows_shrinks_and_survives_its_coordinator(staged) -> None:
    async def story(running) -> None:
        answer = await running.until(lambda answer: members(answer) == {0})
        assert (await running.ask(AskResize(workers=3))).ok
        answer = await running.until(lambda answer: members(answer) == {0, 1, 2})
        os.kill(pid_of(answer, "coordinator"), signal.SIGKILL)
        assert (await running.ask(AskDrain(worker=1))).ok
        answer = await running.until(lambda answer: members(answer) == {0, 2})
        assert answer.term == 2
        # A run that ends first has no more to say about it.
        await running.until(lambda _: "worker.left" in running.kinds())
        running.agent.stop()

    over, running = staged(story, start=1)
    assert over.code == 130
    assert "worker.died" not in running.kinds()
    assert running.kinds().count("worker.left") == 1


def test_a_resize_before_the_fork_server_is_ready_decides_how_many_workers_start(staged) -> None:
    """Whoever gives devices back while nothing runs on them yet must not take them again for a moment."""
    late = ("/bin/sh", "-c", 'sleep 1.5; exec "$0" "$@"', *SMALL)

    async def story(running) -> None:
        await running.until(lambda answer: answer.target == 3)
        assert (await running.ask(AskResize(workers=1))).ok
        await running.until(lambda answer: members(answer) == {0})
        running.agent.stop()

    _, running = staged(story, fork_server=late, start=3)
    assert [event.who for event in running.events() if event.kind == "worker.started"] == ["worker 0"]


def test_the_standby_takes_over_and_another_standby_starts(staged) -> None:
    async def story(running) -> None:
        answer = await running.until(standby_of)
        following = standby_of(answer)
        os.kill(pid_of(answer, "coordinator"), signal.SIGKILL)
        answer = await running.until(lambda answer: answer.term == 2 and standby_of(answer))
        assert pid_of(answer, "coordinator") == following
        assert standby_of(answer) not in (None, following)
        assert os.getpriority(os.PRIO_PROCESS, following) == os.getpriority(os.PRIO_PROCESS, 0)
        running.agent.stop()

    over, running = staged(story, start=1)
    assert over.code == 130
    assert running.kinds().count("coordinator.died") == 1


def test_a_dead_standby_is_replaced_in_the_same_term(staged) -> None:
    async def story(running) -> None:
        answer = await running.until(standby_of)
        first = standby_of(answer)
        os.kill(first, signal.SIGKILL)
        answer = await running.until(lambda answer: standby_of(answer) not in (None, first))
        assert answer.term == 1
        running.agent.stop()

    over, running = staged(story, start=1)
    assert over.code == 130
    assert "coordinator.died" not in running.kinds()


def test_a_run_survives_the_death_of_both_coordinators(staged) -> None:
    async def story(running) -> None:
        answer = await running.until(standby_of)
        os.kill(standby_of(answer), signal.SIGKILL)
        os.kill(pid_of(answer, "coordinator"), signal.SIGKILL)
        await running.until(lambda answer: answer.term > 1 and members(answer) == {0})
        running.agent.stop()

    over, running = staged(story, start=1)
    assert over.code == 130
    assert "worker.died" not in running.kinds()


FIRST_ONE_ONLY = """
import os, runpy, select, sys
endpoint = sys.argv[sys.argv.index("--run-dir") + 1] + "/endpoint.json"
# Whoever serves is told so at once; whoever stands by sees sooner or later that somebody serves.
while not select.select([0], [], [], 0.01)[0]:
    if os.path.exists(endpoint):
        sys.exit("no second one")
runpy.run_module("elastane.coordinator", run_name="__main__", alter_sys=True)
"""


def test_a_run_goes_on_without_a_standby(staged, monkeypatch) -> None:
    # A busy machine starts fewer within the usual time.
    monkeypatch.setattr(coordinators, "WITHIN_S", 1000)

    async def story(running) -> None:
        log = running.run_dir.log("coordinator")
        await running.until(lambda _: log.read_text().count("no second one") == MOST_DEATHS)
        answer = await running.until(lambda answer: members(answer) == {0} and not standby_of(answer))
        assert (answer.term, answer.state) == (1, "training")
        running.agent.stop()

    over, _ = staged(story, coordinator=(sys.executable, "-P", "-c", FIRST_ONE_ONLY), start=1)
    assert over.code == 130


def test_a_coordinator_that_cannot_start_ends_the_run_with_its_last_output(staged) -> None:
    async def story(running) -> None:
        await running.agent._finished.wait()

    broken = (sys.executable, "-c", "raise ImportError('no module named websockets')")
    over, _ = staged(story, coordinator=broken)
    assert over.code == 1
    assert "the coordinator process died 5 times within 10 s" in over.why
    assert "no module named websockets" in over.why


def test_workers_outlive_their_fork_server_and_the_next_one_forks_more(staged) -> None:
    async def story(running) -> None:
        answer = await running.until(lambda answer: members(answer) == {0})
        warm = pid_of(answer, "fork-server")
        os.kill(warm, signal.SIGKILL)
        assert (await running.ask(AskResize(workers=2))).ok
        answer = await running.until(lambda answer: members(answer) == {0, 1})
        assert pid_of(answer, "fork-server") != warm
        # Its parent is gone: the agent itself sees that it dies.
        os.kill(pid_of(answer, "worker", 0), signal.SIGKILL)
        await running.until(lambda answer: members(answer) == {1, 2})
        running.agent.stop()

    staged(story, start=1)


def test_a_kill_ends_all_processes_at_once(staged) -> None:
    pids = []

    async def story(running) -> None:
        answer = await running.until(lambda answer: members(answer) == {0})
        pids.extend(row.pid for row in answer.processes if row.role != "agent")
        running.agent.kill()

    over, _ = staged(story, start=1)
    assert over.code == 130
    assert [pid for pid in pids if alive(pid)] == []


def test_a_fork_server_that_cannot_start_ends_the_run_with_its_last_output(staged) -> None:
    async def story(running) -> None:
        await running.agent._finished.wait()

    broken = (sys.executable, "-c", "raise ImportError('no module named torch')")
    over, _ = staged(story, fork_server=broken)
    assert over.code == 1
    assert "the fork-server process died 5 times within 60 s" in over.why
    assert "no module named torch" in over.why
