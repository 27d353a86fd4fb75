"""The disk under the store of a running controller fills up, and gets room again."""

import asyncio
import threading
import time

import pytest

from elastane.cluster.controller import loop as loops
from elastane.cluster.controller.loop import Loop
from elastane.cluster.controller.planning import Scheduler
from elastane.cluster.controller.store import jobs
from elastane.cluster.controller.store.database import Store
from elastane.cluster.scheduler.explanations import explain_decision
from elastane.cluster.scheduler.plan import plan
from tests.full_disk import fill_disk
from tests.waiting import wait_until

from .machine import Machine, MachineEngine

SIZE = 4 << 20
DEVICES = 2


@pytest.fixture
def disk(make_small_disk):
    return make_small_disk(SIZE)


@pytest.fixture
def store(disk):
    opened = Store(f"sqlite:///{disk}/store.db")
    yield opened
    opened.close()


@pytest.fixture
def running(store, monkeypatch):
    """Run a loop in a thread, as the controller does, over a machine that moves on."""
    for name in ("LOOK_S", "AFTER_FAILURE_S", "GATHER_S", "REPLAN_S"):
        monkeypatch.setattr(loops, name, 0.02)
    machine = Machine(DEVICES, steps=10**9)
    loop = Loop(store, MachineEngine(machine, machine.pass_time), Scheduler(plan, explain_decision))
    thread = threading.Thread(target=asyncio.run, args=(loop.run(),))
    thread.start()
    yield loop, machine
    loop.close()
    thread.join()


def test_the_loop_reports_a_full_disk_retries_and_recovers_while_jobs_train(
    store, running, disk, api_over, make_spec
):
    loop, machine = running
    api = api_over(store)
    api.clock.now_s = time.time()
    operator, ada = api.user("operator"), api.user()
    operator.put("/pools/local", {"name": "local", "device": "cpu", "devices": DEVICES})
    assert ada.post("/jobs", make_spec("before")).is_success
    wait_until(lambda: "before" in machine.jobs, "the job runs")
    attempt = machine.jobs["before"].attempt

    ballast = fill_disk(disk)
    refused = ada.post("/jobs", make_spec("meanwhile", env={"BALLAST": "x" * 100_000}))
    assert refused.status_code == 507
    assert "free some space" in refused.json()["do"]
    # Its workers have come, which is to be written down.
    machine.pass_time()
    machine.pass_time()
    wait_until(lambda: "is full" in loop.failing, "the loop says what is wrong")
    health = ada.get("/health").json()
    assert health["status"] == "failing"
    assert "turns" in {problem["check"] for problem in health["problems"]}
    assert machine.jobs["before"].agent is not None
    assert ada.get("/jobs/before").status_code == 200

    ballast.unlink()
    wait_until(lambda: not loop.failing, "the loop goes on")
    assert ada.get("/health").json() == {"status": "ok"}
    assert ada.post("/jobs/before/cancel").is_success

    def ended() -> bool:
        machine.pass_time()
        with store.begin_read() as tx:
            return jobs.find_job(tx, "before").state == "cancelled"

    wait_until(ended, "what is asked for is done again")
    assert machine.jobs["before"].attempt == attempt
