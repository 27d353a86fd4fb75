"""A real agent with a real coordinator; only the training is missing (see ``small_server.py``)."""

import asyncio
import os
import signal
import sys
from contextlib import suppress
from pathlib import Path

import msgspec
import pytest

from elastane.common.errors import NoSuchRun
from elastane.run.agent import coordinators
from elastane.run.agent.agent import Agent
from elastane.run.agent.processes import Commands
from elastane.run.agent.restarts import MOST_DEATHS
from elastane.run.connections.coordinator_request import ask_coordinator
from elastane.run.machines.claims.terms import OwnTerm
from elastane.run.machines.claims.urls import open_claim_list
from elastane.run.nouns.control import Answer, Ask, AskDrain, AskResize, AskStatus
from elastane.run.nouns.records import EventLine
from elastane.run.nouns.rundir import CLAIMS, RunDir
from elastane.run.nouns.spec import RunRecord, RunSpec
from tests.waiting import WAIT_S, wait_until_async

pytestmark = pytest.mark.processes

SMALL = (sys.executable, "-P", str(Path(__file__).with_name("small_server.py")))


class Running:
    """A run in a temporary directory, which a test asks and disturbs from outside."""

    def __init__(self, root: Path, commands: Commands, **wishes: int) -> None:
        self.run_dir = RunDir(root)
        spec = RunSpec(name="n", script="train.py", **wishes)
        self.run_dir.logs.mkdir()
        (root / CLAIMS).mkdir()
        self.run_dir.run.write_bytes(
            msgspec.json.encode(RunRecord(spec=spec, created="2026-01-01T00:00:00Z"))
        )
        self.run_dir.secret.write_text("secret")
        self.agent = Agent(self.run_dir, spec, commands)

    async def ask(self, question: Ask) -> Answer:
        return await asyncio.to_thread(ask_coordinator, self.run_dir, question, WAIT_S)

    async def wait_until(self, done) -> Answer:
        async def look() -> Answer | None:
            with suppress(NoSuchRun):
                answer = await self.ask(AskStatus())
                return answer if done(answer) else None
            return None

        return await wait_until_async(look, "the run is as it should be", state=self.list_kinds)

    def read_events(self) -> list[EventLine]:
        lines = self.run_dir.events.read_bytes().splitlines()
        return [msgspec.json.decode(line, type=EventLine) for line in lines]

    def list_kinds(self) -> list[str]:
        return [event.kind for event in self.read_events()]


def find_members(answer: Answer) -> set[int | None]:
    """Return the workers that train in the newest generation."""
    return {
        row.worker
        for row in answer.processes
        if row.state == "member" and row.generation == answer.generation and answer.state == "training"
    }


def find_pid(answer: Answer, role: str, worker: int | None = None) -> int:
    return next(row.pid for row in answer.processes if row.role == role and row.worker == worker)


def find_standby(answer: Answer) -> int | None:
    return next((row.pid for row in answer.processes if row.state == "standby"), None)


def is_alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state != "Z"


@pytest.fixture
def play_run(tmp_path, monkeypatch):
    # The command line would take the lock; these tests do not.
    monkeypatch.setattr(
        "elastane.run.connections.coordinator_request.is_live", lambda run_dir: run_dir.endpoint.exists()
    )

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


def test_a_run_is_started_stopped_and_leaves_no_process_behind(play_run) -> None:
    pids = []

    async def story(running) -> None:
        answer = await running.wait_until(
            lambda answer: find_members(answer) == {0, 1} and find_standby(answer)
        )
        pids.extend(row.pid for row in answer.processes if row.role != "agent")
        running.agent.stop()

    over, running = play_run(story, start=2)
    assert over.code == 130
    assert len(pids) == 5
    assert [pid for pid in pids if is_alive(pid)] == []
    assert running.list_kinds()[-1] == "run.stopped"
    assert not running.run_dir.endpoint.exists()


def test_a_killed_worker_is_replaced_under_a_new_number(play_run) -> None:
    async def story(running) -> None:
        answer = await running.wait_until(lambda answer: find_members(answer) == {0, 1})
        os.kill(find_pid(answer, "worker", 1), signal.SIGKILL)
        await running.wait_until(lambda answer: find_members(answer) == {0, 2})
        running.agent.stop()

    _, running = play_run(story, start=2)
    (died,) = [event for event in running.read_events() if event.kind == "worker.died"]
    assert (died.who, died.why) == ("worker 1", "killed by SIGKILL")


def test_a_worker_without_heartbeats_in_a_step_is_ended(play_run) -> None:
    async def story(running) -> None:
        await running.wait_until(lambda answer: find_members(answer) == {0, 1})
        (running.run_dir.root / "hang-1").touch()
        await running.wait_until(lambda answer: find_members(answer) == {0, 2})
        running.agent.stop()

    _, running = play_run(story, start=2)
    assert [event.who for event in running.read_events() if event.kind == "worker.hung"] == ["worker 1"]


def test_the_run_grows_shrinks_and_survives_its_coordinator(play_run) -> None:
    async def story(running) -> None:
        answer = await running.wait_until(lambda answer: find_members(answer) == {0})
        assert (await running.ask(AskResize(workers=3))).ok
        answer = await running.wait_until(lambda answer: find_members(answer) == {0, 1, 2})
        os.kill(find_pid(answer, "coordinator"), signal.SIGKILL)
        assert (await running.ask(AskDrain(worker=1))).ok
        answer = await running.wait_until(lambda answer: find_members(answer) == {0, 2})
        assert answer.term == 2
        # The event is missing if the run ends before.
        await running.wait_until(lambda _: "worker.left" in running.list_kinds())
        running.agent.stop()

    over, running = play_run(story, start=1)
    assert over.code == 130
    assert "worker.died" not in running.list_kinds()
    assert running.list_kinds().count("worker.left") == 1


def test_a_resize_before_the_fork_server_is_ready_decides_how_many_workers_start(play_run, tmp_path) -> None:
    """A run that gives up devices before a worker uses them must not take them again."""
    resized = tmp_path / "resized"
    late = ("/bin/sh", "-c", f'until test -e {resized}; do sleep 0.1; done; exec "$0" "$@"', *SMALL)

    async def story(running) -> None:
        await running.wait_until(lambda answer: answer.target == 3)
        assert (await running.ask(AskResize(workers=1))).ok
        await running.wait_until(lambda answer: answer.target == 1)
        resized.touch()
        await running.wait_until(lambda answer: find_members(answer) == {0})
        running.agent.stop()

    _, running = play_run(story, fork_server=late, start=3)
    assert [event.who for event in running.read_events() if event.kind == "worker.started"] == ["worker 0"]


def test_the_standby_takes_over_and_another_standby_starts(play_run) -> None:
    async def story(running) -> None:
        answer = await running.wait_until(find_standby)
        following = find_standby(answer)
        os.kill(find_pid(answer, "coordinator"), signal.SIGKILL)
        answer = await running.wait_until(lambda answer: answer.term == 2 and find_standby(answer))
        assert find_pid(answer, "coordinator") == following
        assert find_standby(answer) not in (None, following)
        assert os.getpriority(os.PRIO_PROCESS, following) == os.getpriority(os.PRIO_PROCESS, 0)
        running.agent.stop()

    over, running = play_run(story, start=1)
    assert over.code == 130
    assert running.list_kinds().count("coordinator.died") == 1


def test_a_coordinator_that_dies_before_its_standby_starts_has_a_successor(play_run, monkeypatch) -> None:
    monkeypatch.setattr(coordinators, "STANDBY_AFTER_S", 1000.0)

    async def story(running) -> None:
        answer = await running.wait_until(lambda answer: find_members(answer) == {0})
        assert find_standby(answer) is None
        os.kill(find_pid(answer, "coordinator"), signal.SIGKILL)
        answer = await running.wait_until(lambda answer: answer.term == 2 and find_members(answer) == {0})
        assert find_standby(answer) is None
        running.agent.stop()

    over, running = play_run(story, start=1)
    assert over.code == 130
    assert "worker.died" not in running.list_kinds()


def test_a_dead_standby_is_replaced_in_the_same_term(play_run) -> None:
    async def story(running) -> None:
        answer = await running.wait_until(find_standby)
        first = find_standby(answer)
        os.kill(first, signal.SIGKILL)
        answer = await running.wait_until(lambda answer: find_standby(answer) not in (None, first))
        assert answer.term == 1
        running.agent.stop()

    over, running = play_run(story, start=1)
    assert over.code == 130
    assert "coordinator.died" not in running.list_kinds()


def test_a_run_survives_the_death_of_both_coordinators(play_run) -> None:
    async def story(running) -> None:
        answer = await running.wait_until(find_standby)
        os.kill(find_standby(answer), signal.SIGKILL)
        os.kill(find_pid(answer, "coordinator"), signal.SIGKILL)
        await running.wait_until(lambda answer: answer.term > 1 and find_members(answer) == {0})
        running.agent.stop()

    over, running = play_run(story, start=1)
    assert over.code == 130
    assert "worker.died" not in running.list_kinds()


FIRST_ONE_ONLY = """
import os, runpy, select, sys
endpoint = sys.argv[sys.argv.index("--run-dir") + 1] + "/endpoint.json"
# The serving coordinator gets a line at once; a standby finds that another one serves already.
while not select.select([0], [], [], 0.01)[0]:
    if os.path.exists(endpoint):
        sys.exit("no second one")
runpy.run_module("elastane.run.coordinator", run_name="__main__", alter_sys=True)
"""


def test_a_run_goes_on_without_a_standby(play_run, monkeypatch) -> None:
    # A busy machine starts fewer processes within the usual time.
    monkeypatch.setattr(coordinators, "WITHIN_S", 1000)

    async def story(running) -> None:
        log = running.run_dir.log("coordinator")
        await running.wait_until(lambda _: log.read_text().count("no second one") == MOST_DEATHS)
        answer = await running.wait_until(
            lambda answer: find_members(answer) == {0} and not find_standby(answer)
        )
        assert (answer.term, answer.state) == (1, "training")
        running.agent.stop()

    over, _ = play_run(story, coordinator=(sys.executable, "-P", "-c", FIRST_ONE_ONLY), start=1)
    assert over.code == 130


def test_a_coordinator_that_cannot_start_ends_the_run_with_its_last_output(play_run) -> None:
    async def story(running) -> None:
        await running.agent._finished.wait()

    broken = (sys.executable, "-c", "raise ImportError('no module named websockets')")
    over, _ = play_run(story, coordinator=broken)
    assert over.code == 1
    assert "the coordinator process died 5 times within 10 s" in over.why
    assert "no module named websockets" in over.why


def test_a_run_gives_way_to_a_coordinator_of_another_agent(play_run) -> None:
    async def story(running) -> None:
        await running.wait_until(lambda answer: find_members(answer) == {0} and find_standby(answer))
        other = OwnTerm(open_claim_list(str(running.run_dir.root / CLAIMS)), 1)
        assert other.claim() == 2
        await running.agent._finished.wait()
        assert other.check() is None

    over, running = play_run(story, start=1)
    assert over.code == 1
    assert "another coordinator has claimed a higher term" in over.why
    log = running.run_dir.log("coordinator")
    assert str(log) in over.why
    assert "has claimed term 2" in log.read_text()
    # The standby has not taken over.
    assert running.list_kinds().count("coordinator.started") == 1


def test_workers_outlive_their_fork_server_and_the_next_one_forks_more(play_run) -> None:
    async def story(running) -> None:
        answer = await running.wait_until(lambda answer: find_members(answer) == {0})
        warm = find_pid(answer, "fork-server")
        os.kill(warm, signal.SIGKILL)
        assert (await running.ask(AskResize(workers=2))).ok
        answer = await running.wait_until(lambda answer: find_members(answer) == {0, 1})
        assert find_pid(answer, "fork-server") != warm
        # The parent of the worker is gone, so the agent itself sees its death.
        os.kill(find_pid(answer, "worker", 0), signal.SIGKILL)
        await running.wait_until(lambda answer: find_members(answer) == {1, 2})
        running.agent.stop()

    play_run(story, start=1)


def test_a_kill_ends_all_processes_at_once(play_run) -> None:
    pids = []

    async def story(running) -> None:
        answer = await running.wait_until(lambda answer: find_members(answer) == {0})
        pids.extend(row.pid for row in answer.processes if row.role != "agent")
        running.agent.kill()

    over, _ = play_run(story, start=1)
    assert over.code == 130
    assert [pid for pid in pids if is_alive(pid)] == []


def test_a_fork_server_that_cannot_start_ends_the_run_with_its_last_output(play_run) -> None:
    async def story(running) -> None:
        await running.agent._finished.wait()

    broken = (sys.executable, "-c", "raise ImportError('no module named torch')")
    over, _ = play_run(story, fork_server=broken)
    assert over.code == 1
    assert "the fork-server process died 5 times within 60 s" in over.why
    assert "no module named torch" in over.why
