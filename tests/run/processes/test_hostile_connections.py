"""Hostile connections flood every port of a run while it trains, grows and has no free descriptor."""

import asyncio
import json
import statistics

import pytest

from elastane.run.nouns.control import Answer
from tests.waiting import wait_until_async

from .hostile_connections import flood_with_connections, leave_descriptors
from .stage import LiveRun, find_members, get_pid
from .test_security import find_listening_ports

pytestmark = [pytest.mark.processes, pytest.mark.long]

FEW_DESCRIPTORS, MANY_DESCRIPTORS = 4, 200
STEP_S = 0.3
EXHAUSTED = "Too many open files"
LARGEST_LOG_BYTES = 8 << 10


def find_mesh_ports(answer: Answer) -> list[int]:
    """Return the ports on which workers listen for their peers."""
    workers = [row.pid for row in answer.processes if row.role == "worker"]
    return [port for pid in workers for _, port in find_listening_ports(pid)]


async def wait_for_lines(run: LiveRun, steps: int) -> None:
    """Wait for lines in the ledger; without descriptors the coordinator answers no new connection."""
    ledger = run.run_dir.ledger
    await wait_until_async(lambda: ledger.read_bytes().count(b"\n") >= steps, f"{steps} steps are made")


async def wait_for_member(run: LiveRun, worker: int) -> Answer:
    """Let the run make slow steps until a worker has joined; its connections wait behind the hostile ones."""
    while True:
        answer = await run.wait_until(lambda answer: answer.step > 0)
        if worker in find_members(answer):
            return answer
        assert answer.step < answer.steps, f"worker {worker} does not get in"
        run.touch(f"gate-{answer.step + 1}")
        await asyncio.sleep(STEP_S)  # not a wait: paces the steps


async def exhaust_descriptors(run: LiveRun, coordinator: int) -> None:
    """Take free descriptors from the coordinator until it has none for a hostile connection, and says so.

    Hostile connections that end give descriptors back, so one limit may not be enough.
    """

    def is_exhausted() -> bool:
        leave_descriptors(coordinator, 0)
        return EXHAUSTED in run.run_dir.log("coordinator").read_text()

    await wait_until_async(is_exhausted, "the coordinator has no free descriptor")


@pytest.fixture(scope="module", params=["", "127.0.0.1"], ids=["plain", "TLS"])
def flood(request, stage, tmp_path_factory):
    count = tmp_path_factory.mktemp("flood") / "connections"

    async def disturb(run: LiveRun) -> None:
        answer = await run.wait_for_step(4)
        coordinator = json.loads(run.run_dir.endpoint.read_text())["port"]
        workers = [row.pid for row in answer.processes if row.role == "worker"]
        with flood_with_connections(find_mesh_ports(answer), coordinator, count):
            await wait_until_async(lambda: count.exists() and count.read_text(), "the flood has begun")
            await exhaust_descriptors(run, get_pid(answer, "coordinator"))
            for pid in workers:
                leave_descriptors(pid, FEW_DESCRIPTORS)  # the script opens files, too
            for step in (5, 6):
                run.touch(f"gate-{step}")
            await wait_for_lines(run, 6)
            for pid in (get_pid(answer, "coordinator"), *workers):
                leave_descriptors(pid, MANY_DESCRIPTORS)
            await run.resize(3)
            await run.wait_for_event("worker.ready", "worker 2")
            answer = await wait_for_member(run, 2)
        with flood_with_connections(find_mesh_ports(answer), coordinator, count.with_name("more")):
            run.stop_pacing()
            await run.wait_for_step(answer.steps - 1)

    # A run that listens for other machines encrypts its control connections.
    return stage.play("--paced-from=5", disturb=disturb, start=2, listen=request.param), count


def test_hostile_connections_change_no_byte(flood, assert_equals_reference):
    assert_equals_reference(flood[0])


def test_no_process_dies_and_a_third_worker_joins(flood):
    ended, _ = flood
    for kind in ("worker.died", "worker.hung", "worker.failed", "coordinator.died"):
        assert ended.find_events(kind) == [], ended.describe()
    assert sorted(ended.find_subjects("worker.joined")) == ["worker 0", "worker 1", "worker 2"]


def test_the_flood_was_real_and_the_coordinator_ran_out_of_descriptors(flood, record_testsuite_property):
    ended, count = flood
    connections = int(count.read_text()) + int(count.with_name("more").read_text())
    record_testsuite_property("hostile connections: connections", connections)
    seconds = [line.seconds["step"] for line in ended.run.ledger]
    record_testsuite_property(
        "hostile connections: median step before, in seconds", statistics.median(seconds[1:4])
    )
    record_testsuite_property(
        "hostile connections: median step meanwhile, in seconds", statistics.median(seconds[6:])
    )
    assert connections > 500
    assert EXHAUSTED in ended.read_log("coordinator")


def test_hostile_connections_cannot_fill_the_logs(flood):
    ended, _ = flood
    for process in ("coordinator", "worker-0", "worker-1", "worker-2"):
        log = ended.read_log(process)
        assert len(log.encode()) < LARGEST_LOG_BYTES, log[:2000]
        assert log.count("did not prove") <= 2, log[:2000]
