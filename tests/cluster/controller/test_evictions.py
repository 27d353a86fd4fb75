"""Workers that ignore the request to leave: other jobs get their devices only once they are gone."""

import asyncio

import pytest

from elastane.cluster.controller.loop import Loop
from elastane.cluster.controller.planning import Scheduler
from elastane.cluster.controller.store import jobs
from elastane.cluster.nouns.jobs import ElasticPolicy
from elastane.cluster.scheduler.explanations import explain_decision
from elastane.cluster.scheduler.plan import plan

from .machine import Machine, MachineEngine

GRACE_S = 5
RULES = {"cooldownS": 1, "minRunTimeS": 1}
POOL = {"name": "local", "device": "cpu", "devices": 4}


@pytest.fixture
def machine():
    return Machine(4, steps=10**9)


@pytest.fixture
def cycles(sqlite_store, api_over, make_spec, machine):
    """Job ``a`` has all devices and gives none back; ``b`` is submitted and needs two of them."""
    api = api_over(sqlite_store, plan=plan, explain=explain_decision)
    operator, ada = api.user("operator"), api.user()
    assert operator.put("/pools/local", POOL).is_success
    assert operator.put("/rules", RULES).is_success
    loop = Loop(sqlite_store, MachineEngine(machine), Scheduler(plan, explain_decision), api.clock)

    def submit(name, least, most):
        policy = ElasticPolicy(
            min_replicas=least, max_replicas=most, graceful_shutdown_timeout_in_seconds=GRACE_S
        )
        assert ada.post("/jobs", make_spec(name, elastic_policy=policy)).is_success
        loop._mark_stale()

    def pass_time(seconds):
        for _ in range(seconds):
            api.clock.now_s += 1.0
            machine.pass_time()
            asyncio.run(loop.run_cycle())

    def until(so):
        for _ in range(100):
            if so():
                return
            pass_time(1)
        raise AssertionError(f"not so: {machine.jobs}")

    submit("a", 1, 4)
    until(lambda: "a" in machine.jobs and machine.jobs["a"].agent.workers == 4)
    machine.stubborn.add("a")
    submit("b", 2, 2)
    return until, pass_time


def test_evicted_workers_keep_their_devices_for_their_grace_period_only(cycles, machine):
    until, pass_time = cycles
    until(lambda: machine.jobs["a"].agent.target == 2)
    pass_time(GRACE_S - 2)
    assert machine.jobs["a"].agent.workers == 4
    assert "b" not in machine.jobs
    pass_time(3)
    assert machine.jobs["a"].agent.workers == 2
    until(lambda: "b" in machine.jobs)
    assert machine.jobs["a"].begun == [1]


def test_an_eviction_does_not_count_as_a_crash(cycles, machine, sqlite_store):
    until, _ = cycles
    until(lambda: "b" in machine.jobs)
    with sqlite_store.begin_read() as tx:
        assert {(job.name, job.crashes, job.attempts) for job in jobs.find_jobs(tx, ["a", "b"])} == {
            ("a", 0, 0),
            ("b", 0, 0),
        }
