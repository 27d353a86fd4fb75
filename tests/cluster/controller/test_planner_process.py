"""Plans that a process of their own makes, and plans that are always outdated."""

import asyncio
import os
import signal
from contextlib import closing
from pathlib import Path

import pytest

from elastane.cluster.controller import loop as loops
from elastane.cluster.controller.loop import Loop
from elastane.cluster.controller.planner import Planner, PlannerGone
from elastane.cluster.controller.planning import Scheduler, make_cluster_plan
from elastane.cluster.controller.store import jobs
from elastane.cluster.scheduler.explanations import explain_decision
from elastane.cluster.scheduler.plan import plan

from .machine import Machine, MachineEngine

SCHEDULER = Scheduler(plan, explain_decision)
POOL = {"name": "local", "device": "cpu", "devices": 4}


@pytest.fixture
def cluster(store, api_over, make_spec):
    api = api_over(store, plan=plan, explain=explain_decision)
    assert api.user("operator").put("/pools/local", POOL).is_success
    for name in ("a", "b", "c"):
        assert api.user().post("/jobs", make_spec(name)).is_success
    return api


@pytest.fixture
def planner(store_url):
    with closing(Planner(store_url)) as process:
        yield process


def here(cluster):
    with cluster.store.begin_read() as tx:
        return make_cluster_plan(tx, cluster.clock(), SCHEDULER)


def test_the_planner_process_makes_the_same_plan(cluster, planner):
    expected = here(cluster)
    assert [one.decision.action for one in expected.worded] == ["start", "start", "start"]
    assert planner.plan(cluster.clock()) == expected


def test_the_command_line_of_the_planner_lacks_the_url_of_the_store(cluster, planner, store_url):
    planner.plan(cluster.clock())
    argv = Path(f"/proc/{planner._process.pid}/cmdline").read_bytes().split(b"\0")
    assert b"elastane.cluster.controller.planner" in argv
    assert not [one for one in argv if store_url.encode() in one]


def test_stored_sizes_with_stored_reasons_are_not_decided_again(cluster, planner, monkeypatch):
    monkeypatch.setattr(loops, "HERE_JOBS", 0)
    engine = MachineEngine(Machine(4, steps=10**9))
    asyncio.run(Loop(cluster.store, engine, SCHEDULER, cluster.clock, planner=planner).run_cycle())
    with cluster.store.begin_read() as tx:
        assert {job.workers for job in jobs.list_planned_jobs(tx)} == {1, 2}
    assert planner.plan(cluster.clock()).worded == here(cluster).worded
    assert not [one for one in here(cluster).worded if one.decision.action == "start"]


def test_a_killed_planner_is_reported_and_replaced(cluster, planner):
    before = planner.plan(cluster.clock())
    os.kill(planner._process.pid, signal.SIGKILL)
    with pytest.raises(PlannerGone, match="has exited with status -9"):
        planner.plan(cluster.clock())
    assert planner.plan(cluster.clock()) == before


def test_constant_changes_do_not_delay_a_plan_for_ever(cluster, make_spec, monkeypatch):
    """A job is submitted during each plan; finally, submissions wait for the plan."""
    loop = Loop(cluster.store, MachineEngine(Machine(4, steps=10**9)), SCHEDULER, cluster.clock)
    ada, turns = cluster.user(), iter(range(100))
    make_plan = loop._make_plan

    async def overtaken(now_s):
        found = await make_plan(now_s)
        if not cluster.store._one_writer.locked():
            await asyncio.to_thread(ada.post, "/jobs", make_spec(f"more-{next(turns)}"))
        return found

    monkeypatch.setattr(loop, "_make_plan", overtaken)

    async def several_turns():
        for _ in range(loops.OUTDATED_PLANS + 1):
            await loop.run_cycle()

    asyncio.run(several_turns())
    with cluster.store.begin_read() as tx:
        assert sum(job.workers for job in jobs.list_planned_jobs(tx)) == 4
