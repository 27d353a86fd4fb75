"""Strangers besiege every port of a run while it trains, grows and has no descriptor left; nobody notices."""

import asyncio
import json
import statistics

import pytest

from elastane.api.control import Answer

from .stage import Running, eventually, member_states, pid_of
from .strangers import besieged, leave_descriptors
from .test_security import listening

pytestmark = [pytest.mark.processes, pytest.mark.long]

FEW, ENOUGH = 4, 200
STEP_S = 0.3
LARGEST_LOG_BYTES = 8 << 10


def ports_of(answer: Answer) -> list[int]:
    """Of the workers' meshes."""
    workers = [row.pid for row in answer.processes if row.role == "worker"]
    return [port for pid in workers for _, port in listening(pid)]


async def until_on_disk(running: Running, steps: int) -> None:
    """Asks nobody: while descriptors lack, nobody new is heard."""
    ledger = running.run_dir.ledger
    await asyncio.to_thread(eventually, lambda: ledger.read_bytes().count(b"\n") >= steps, f"{steps} steps")


async def until_member(running: Running, worker: int) -> Answer:
    """Paced steps, slowly: a newcomer waits at the door of each worker, behind the strangers."""
    while True:
        answer = await running.until(lambda answer: answer.step > 0)
        if worker in member_states(answer):
            return answer
        assert answer.step < answer.steps, f"worker {worker} does not get in"
        running.open(f"gate-{answer.step + 1}")
        await asyncio.sleep(STEP_S)


@pytest.fixture(scope="module")
def siege(stage, tmp_path_factory):
    count = tmp_path_factory.mktemp("siege") / "connections"

    async def story(running: Running) -> None:
        answer = await running.until_step(4)
        coordinator = json.loads(running.run_dir.endpoint.read_text())["port"]
        workers = [row.pid for row in answer.processes if row.role == "worker"]
        with besieged(ports_of(answer), coordinator, count):
            await asyncio.sleep(0.5)
            leave_descriptors(pid_of(answer, "coordinator"), 0)
            for pid in workers:
                leave_descriptors(pid, FEW)  # the script opens files, too
            for step in (5, 6):
                running.open(f"gate-{step}")
            await until_on_disk(running, 6)
            for pid in (pid_of(answer, "coordinator"), *workers):
                leave_descriptors(pid, ENOUGH)
            await running.resize(3)
            await running.until_event("worker.ready", "worker 2")
            answer = await until_member(running, 2)
        with besieged(ports_of(answer), coordinator, count.with_name("more")):
            running.go()
            await running.until_step(answer.steps - 1)

    return stage.play("--paced-from=5", story=story, start=2), count


def test_the_bytes_are_those_of_a_quiet_run(siege, assert_undisturbed):
    assert_undisturbed(siege[0])


def test_nobody_dies_and_a_third_worker_joins(siege):
    ended, _ = siege
    for kind in ("worker.died", "worker.hung", "worker.failed", "coordinator.died"):
        assert ended.events(kind) == [], ended.story()
    assert sorted(ended.who("worker.joined")) == ["worker 0", "worker 1", "worker 2"]


def test_strangers_were_really_there_and_descriptors_really_lacked(siege, record_testsuite_property):
    ended, count = siege
    connections = int(count.read_text()) + int(count.with_name("more").read_text())
    record_testsuite_property("besieged: connections", connections)
    seconds = [line.seconds["step"] for line in ended.run.ledger]
    record_testsuite_property("besieged: median step before, in seconds", statistics.median(seconds[1:4]))
    record_testsuite_property("besieged: median step meanwhile, in seconds", statistics.median(seconds[6:]))
    assert connections > 500
    assert "Too many open files" in ended.log("coordinator")


def test_strangers_cannot_fill_the_logs(siege):
    ended, _ = siege
    for process in ("coordinator", "worker-0", "worker-1", "worker-2"):
        log = ended.log(process)
        assert len(log.encode()) < LARGEST_LOG_BYTES, log[:2000]
        assert log.count("did not prove") <= 2, log[:2000]
