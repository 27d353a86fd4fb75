"""Pods in a queue of Kueue, with a double of it and of the API server. The pods are processes."""

import itertools
import time

import pytest

from elastane.cluster.engines.kubernetes.doctor import examine_kubernetes
from elastane.cluster.engines.kubernetes.engine import KEPT_S
from elastane.cluster.engines.kubernetes.pods import FORCE_AFTER_S
from elastane.cluster.nouns.agents import AgentEnd, AgentGang
from tests.cluster.engines.api_double.cluster import DEVICE, NAMESPACE, run_small_cluster
from tests.cluster.engines.api_double.kueue import KueueDouble, run_kueue
from tests.cluster.engines.contract import (
    GRACE_S,
    AgentEngineContract,
    ask_for_agent,
    list_by_id,
    wait_until_gone,
)
from tests.cluster.engines.test_kubernetes import KubernetesSite
from tests.waiting import wait_until

pytestmark = pytest.mark.processes
QUEUE = "team-a"
POOL = {
    "resource": DEVICE,
    "queue": QUEUE,
    "workloadPriorityClassName": "training",
    "growthPriorityClassName": "growth",
}
SAME = "Kueue does not tell growth from the fewest pods of a job: it has no growthPriorityClassName"
gangs = itertools.count(1)


class KueueSite(KubernetesSite):
    """An `EngineSite` with a queue."""

    pool = POOL

    def __init__(self, cluster, runner, kueue: KueueDouble) -> None:
        super().__init__(cluster, runner)
        self.kueue = kueue

    def ask_for_gang(self, size: int, asked: int | None = None, gang: AgentGang | None = None):
        gang = gang or AgentGang(next(gangs), size)
        return [ask_for_agent(self, gang=gang) for _ in range(size if asked is None else asked)]

    def wait_for_why(self, engine, ask, *words: str) -> None:
        wait_until(
            lambda: all(word in list_by_id(self, engine)[ask.id].why for word in words),
            f"{ask.id} says {words}",
            state=lambda: (list_by_id(self, engine)[ask.id], self.cluster.objects.list_all("workloads")),
        )

    def wait_for_quota(self, devices: int) -> None:
        wait_until(
            lambda: self.kueue.count_used(QUEUE) == devices,
            f"{devices} devices of the quota are held",
            state=lambda: self.cluster.objects.list_all("workloads"),
        )

    def close(self) -> None:
        for pod in self.cluster.list_pods():
            self.cluster.delete(pod["metadata"]["name"], gracePeriodSeconds=0)
        self.kueue.forget_all()
        super().close()
        self.kueue.set_quota(QUEUE, 6)


@pytest.fixture(scope="module")
def cluster_with_queue():
    with run_small_cluster() as cluster, run_kueue(cluster, {QUEUE: 6}) as kueue:
        kueue.add_class("training", 0)
        kueue.add_class("growth", -10)
        kueue.add_class("urgent", 10)
        yield cluster, kueue


@pytest.fixture
def site(cluster_with_queue, event_loop_runner):
    cluster, kueue = cluster_with_queue
    site = KueueSite(cluster, event_loop_runner, kueue)
    try:
        yield site
    finally:
        site.close()


@pytest.mark.long
class TestKubernetesEngineWithKueue(AgentEngineContract):
    """The contract of all engines, each agent a workload of its own."""

    repeats_notices = False


def test_a_gang_without_quota_for_all_holds_nothing_and_says_what_it_waits_for(site):
    engine = site.build_engine("here")
    site.kueue.set_quota(QUEUE, 1)
    asks = site.ask_for_gang(2)
    assert site.run(engine.start_agents(asks[:1])) == {}
    site.wait_for_why(engine, asks[0], "it waits in queue team-a of Kueue", "pods of its group are missing")
    assert site.run(engine.start_agents(asks[1:])) == {}
    site.wait_for_why(engine, asks[0], "no quota (Pending)", "1 more needed")
    assert {agent.state for agent in list_by_id(site, engine).values()} == {"pending"}
    assert site.kueue.count_used(QUEUE) == 0
    # A small job goes past it.
    (small,) = site.ask_for_gang(1)
    assert site.run(engine.start_agents([small])) == {}
    site.desk.meet(small.id).exit(0)
    wait_until_gone(site, engine, small.id)
    # The gang gives up its place without a trace, although Kueue keeps its pods for a while.
    ends = [AgentEnd(ask.id, 0.0) for ask in asks]
    assert site.run(engine.end_agents(ends)) == {}
    for ask in asks:
        assert wait_until_gone(site, engine, ask.id).exit_code is None
    wait_until(lambda: not site.cluster.list_living(), "no pod runs")
    site.wait_for_quota(0)


def test_a_gang_begins_as_a_whole_and_its_end_frees_the_quota(site):
    engine = site.build_engine("here")
    site.kueue.set_quota(QUEUE, 1)
    asks = site.ask_for_gang(2)
    assert site.run(engine.start_agents(asks)) == {}
    site.wait_for_why(engine, asks[1], "1 more needed")
    site.kueue.set_quota(QUEUE, 2)
    first, second = (site.desk.meet(ask.id) for ask in asks)
    site.wait_for_quota(2)
    # One leaves in peace, and its quota is free; the last one fails, and so is the rest.
    first.exit(0)
    site.wait_for_quota(1)
    second.exit(1)
    site.wait_for_quota(0)
    assert [wait_until_gone(site, engine, ask.id).exit_code for ask in asks] == [0, 1]
    # A resumed job has a new gang.
    again = site.ask_for_gang(2)
    assert site.run(engine.start_agents(again)) == {}
    for ask in again:
        site.desk.meet(ask.id).exit(0)
    site.wait_for_quota(0)


def test_a_member_that_failed_is_replaced_in_its_gang_with_the_same_quota(site):
    engine = site.build_engine("here")
    site.kueue.set_quota(QUEUE, 2)
    asks = site.ask_for_gang(2)
    assert site.run(engine.start_agents(asks)) == {}
    first, second = (site.desk.meet(ask.id) for ask in asks)
    second.exit(1)
    wait_until_gone(site, engine, asks[1].id)
    assert site.kueue.count_used(QUEUE) == 2
    (other,) = site.ask_for_gang(2, 1, asks[0].gang)
    assert site.run(engine.start_agents([other])) == {}
    third = site.desk.meet(other.id)
    assert site.kueue.count_used(QUEUE) == 2
    assert list_by_id(site, engine)[other.id].state == "running"
    for line in (first, third):
        line.exit(0)
    site.wait_for_quota(0)


def test_a_member_on_a_lost_node_is_gone_but_keeps_its_place_in_the_gang(site):
    site.now_s = time.time()
    engine = site.build_engine("here")
    asks = site.ask_for_gang(2)
    assert site.run(engine.start_agents(asks)) == {}
    lines = {ask.id: site.desk.meet(ask.id) for ask in asks}
    lost = asks[0].id
    node = list_by_id(site, engine)[lost].node
    site.cluster.nodes.lost.add(node)
    try:
        assert site.run(engine.end_agents([AgentEnd(lost, 0.0)])) == {}
        wait_until(lambda: list_by_id(site, engine)[lost].state == "leaving", f"{lost} is leaving")
        site.now_s += 2 * FORCE_AFTER_S
        assert site.run(engine.end_agents([AgentEnd(lost, 0.0)])) == {}
        seen = wait_until_gone(site, engine, lost)
        assert (seen.exit_code, seen.is_replaceable) == (None, False)
        # The finalizer of Kueue keeps the pod, and it is deleted only once more.
        assert site.cluster.objects.find("pods", NAMESPACE, f"elastane-{lost}") is not None
        site.now_s += KEPT_S
        site.cluster.api.requests.clear()
        for _ in range(3):
            assert list_by_id(site, engine)[lost].state == "gone"
        assert site.cluster.api.requests["delete", "pods"] == 0
        assert site.kueue.count_used(QUEUE) == 2
    finally:
        site.cluster.nodes.lost.clear()
    lines[lost].wait_for_end()
    for line in lines.values():
        line.exit(0)
    site.wait_for_quota(0)


def test_growth_is_preempted_first_and_the_members_stay(site):
    engine = site.build_engine("here")
    site.kueue.set_quota(QUEUE, 3)
    members, growth = site.ask_for_gang(2), ask_for_agent(site)
    assert site.run(engine.start_agents(members)) == {}
    lines = [site.desk.meet(ask.id) for ask in members]
    assert site.run(engine.start_agents([growth])) == {}
    line = site.desk.meet(growth.id)
    # Another job comes, which needs one device.
    (other,) = site.ask_for_gang(1)
    assert site.run(engine.start_agents([other])) == {}
    assert line.wait_for_line() == "SIGTERM"
    site.wait_for_why(engine, growth, "Kueue ends it", "Preempted to accommodate a workload")
    # Its quota is free only when it is gone.
    assert list_by_id(site, engine)[other.id].state == "pending"
    line.exit(0)
    site.desk.meet(other.id).exit(0)
    assert wait_until_gone(site, engine, growth.id).exit_code == 0
    assert {list_by_id(site, engine)[ask.id].state for ask in members} == {"running"}
    # Growth that finds no quota waits, and holds none.
    late = ask_for_agent(site)
    site.kueue.set_quota(QUEUE, 2)
    assert site.run(engine.start_agents([late])) == {}
    site.wait_for_why(engine, late, "it waits in queue team-a of Kueue: no quota")
    assert site.run(engine.end_agents([AgentEnd(late.id, GRACE_S)])) == {}
    wait_until_gone(site, engine, late.id)
    for line in lines:
        line.exit(0)
    site.wait_for_quota(0)


def test_a_preempted_gang_leaves_as_a_whole_and_another_one_waits_for_its_turn(site):
    engine = site.build_engine("here")
    site.kueue.set_quota(QUEUE, 2)
    asks = site.ask_for_gang(2)
    assert site.run(engine.start_agents(asks)) == {}
    lines = [site.desk.meet(ask.id) for ask in asks]
    high = [
        ask_for_agent(site, gang=AgentGang(gang, 2), pool=POOL | {"workloadPriorityClassName": "urgent"})
        for gang in [next(gangs)] * 2
    ]
    assert site.run(engine.start_agents(high)) == {}
    for line in lines:
        assert line.wait_for_line() == "SIGTERM"
    # One leaves in time, and one is killed.
    lines[0].exit(0)
    lines[1].exit(1)
    urgent = [site.desk.meet(ask.id) for ask in high]
    again = site.ask_for_gang(2)
    assert site.run(engine.start_agents(again)) == {}
    site.wait_for_why(engine, again[0], "no quota (Pending)", "2 more needed")
    site.wait_for_quota(2)
    for line in urgent:
        line.exit(0)
    for ask in again:
        site.desk.meet(ask.id).exit(0)
    site.wait_for_quota(0)


@pytest.mark.parametrize("size", [0, 1])
def test_a_priority_class_that_does_not_exist_is_named_and_nothing_runs(site, size):
    engine = site.build_engine("here")
    gang = AgentGang(next(gangs), size) if size else None
    pool = POOL | {"workloadPriorityClassName": "none", "growthPriorityClassName": "none"}
    ask = ask_for_agent(site, gang=gang, pool=pool)
    assert site.run(engine.start_agents([ask])) == {}
    site.wait_for_why(engine, ask, "Kueue has made no workload for it yet", "class" if size else "")
    assert site.run(engine.end_agents([AgentEnd(ask.id, 0.0)])) == {}
    wait_until_gone(site, engine, ask.id)


def test_a_queue_that_does_not_exist_is_named_and_nothing_runs(site):
    engine = site.build_engine("here")
    ask = ask_for_agent(site, pool=POOL | {"queue": "team-z"})
    assert site.run(engine.start_agents([ask])) == {}
    site.wait_for_why(engine, ask, "it waits in queue team-z of Kueue", "LocalQueue team-z doesn't exist")
    assert site.run(engine.end_agents([AgentEnd(ask.id, 0.0)])) == {}
    wait_until_gone(site, engine, ask.id)


def test_without_the_right_to_read_workloads_the_queue_is_still_named(site):
    engine = site.build_engine("here")
    site.kueue.set_quota(QUEUE, 0)
    site.cluster.api.requests.clear()
    site.cluster.api.forbidden |= {("list", "workloads"), ("watch", "workloads")}
    try:
        ask = ask_for_agent(site)
        assert site.run(engine.start_agents([ask])) == {}
        for _ in range(3):
            assert list_by_id(site, engine)[ask.id].why == "it waits in queue team-a of Kueue"
        assert site.cluster.api.requests["list", "workloads"] <= 1
    finally:
        site.cluster.api.forbidden.clear()
    assert site.run(engine.end_agents([AgentEnd(ask.id, 0.0)])) == {}


def test_the_doctor_says_what_a_queue_lacks(site):
    pools = {
        "good": POOL,
        "lost": POOL | {"queue": "team-z", "growthPriorityClassName": "none"},
        "flat": {"resource": DEVICE, "queue": QUEUE},
    }
    found = site.run(examine_kubernetes(site.build_options(), pools))
    texts = [(finding.ok, finding.what) for finding in found if "Kueue" in finding.what]
    assert texts == [
        (True, "pool good: Kueue admits its pods in queue team-a"),
        (False, "pool lost: Kueue has no queue team-z in namespace training"),
        (False, "pool lost: Kueue has no workload priority class none"),
        (True, "pool flat: Kueue admits its pods in queue team-a"),
        (True, f"pool flat: {SAME}"),
    ]
    assert all(finding.do for finding in found if not finding.ok)
    # The integration of plain pods is off, or leaves this namespace out.
    webhook, site.cluster.api.webhook = site.cluster.api.webhook, lambda pod: None
    try:
        found = site.run(examine_kubernetes(site.build_options(), {"good": POOL}))
    finally:
        site.cluster.api.webhook = webhook
    (off,) = [finding for finding in found if "Kueue" in finding.what]
    assert not off.ok
    assert (
        off.what == f"pool good: Kueue leaves pods in namespace {NAMESPACE} alone, so they wait for no quota"
    )
    assert "frameworks" in off.do
