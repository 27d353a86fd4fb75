"""The engine for Kubernetes, with a double of its API server."""

import asyncio
import base64
import json
import time
from collections.abc import Iterator

import pytest

from elastane.cluster.engines.kubernetes import api_server
from elastane.cluster.engines.kubernetes.doctor import examine_kubernetes
from elastane.cluster.engines.kubernetes.elastic_jobs.definition import build_definition
from elastane.cluster.engines.kubernetes.engine import KEPT_S, KubernetesEngine
from elastane.cluster.engines.kubernetes.options import KubernetesOptions
from elastane.cluster.engines.kubernetes.pods import FORCE_AFTER_S
from elastane.cluster.nouns.agents import AgentEnd, AgentEngine, Away
from tests.cluster.engines.agent_desk import COMMAND, AgentDesk
from tests.cluster.engines.api_double.cluster import (
    DEVICE,
    NAMESPACE,
    NODES,
    SmallCluster,
    run_small_cluster,
)
from tests.cluster.engines.api_double.objects import Document
from tests.cluster.engines.contract import (
    GRACE_S,
    HASTY_S,
    AgentEngineContract,
    ask_for_agent,
    list_by_id,
    start,
    wait_until_gone,
)
from tests.waiting import WAIT_S, wait_until

pytestmark = pytest.mark.processes
POOL = {"resource": DEVICE}


class KubernetesSite:
    """An `EngineSite`.

    Attributes:
        now_s: the time for engines, in seconds since 1970; None: the real one.
    """

    pool = POOL
    now_s: float | None = None

    def __init__(self, cluster: SmallCluster, runner: asyncio.Runner) -> None:
        self.cluster = cluster
        self.desk = AgentDesk()
        self.run = runner.run
        self._engines: list[KubernetesEngine] = []

    def build_options(self, **changes) -> KubernetesOptions:
        fields = {
            "kubeconfig": str(self.cluster.kubeconfig),
            "image": "train:1",
            "command": COMMAND,
            "answer_s": WAIT_S,
        }
        return KubernetesOptions(**fields | changes)

    def build_engine(self, cluster: str, *, answer_s: float = WAIT_S, **changes) -> AgentEngine:
        engine = KubernetesEngine(
            cluster, self.build_options(answer_s=answer_s, **changes), now=lambda: self.now_s or time.time()
        )
        self._engines.append(engine)
        return engine

    def silence(self):
        return self.cluster.api.silence()

    def close(self) -> None:
        """End the agents of a test, and remove their pods."""
        self.desk.close()
        for engine in self._engines:
            self.run(engine.close())
        for pod in self.cluster.list_pods():
            self.cluster.delete(pod["metadata"]["name"], gracePeriodSeconds=0)
        wait_until(lambda: not self.cluster.list_pods(), "all pods are removed", state=self.cluster.list_pods)


@pytest.fixture(scope="module")
def small_cluster() -> Iterator[SmallCluster]:
    with run_small_cluster() as cluster:
        yield cluster


@pytest.fixture
def site(small_cluster: SmallCluster, event_loop_runner: asyncio.Runner) -> Iterator[KubernetesSite]:
    site = KubernetesSite(small_cluster, event_loop_runner)
    try:
        yield site
    finally:
        site.close()


class TestKubernetesEngine(AgentEngineContract):
    """The contract of all engines."""

    repeats_notices = False


def find_pod(site, agent: str) -> Document:
    return site.cluster.objects.get("pods", NAMESPACE, f"elastane-{agent}")


def wait_for_why(site, engine, agent: str, words: str) -> None:
    wait_until(
        lambda: words in list_by_id(site, engine)[agent].why,
        f"{agent} says {words}",
        state=lambda: list_by_id(site, engine)[agent],
    )


def list_names(site, engine, pool) -> dict[str, int]:
    return {node.name: node.devices for node in site.run(engine.list_nodes({"pool": pool}))}


def test_the_ticket_is_in_a_secret_of_the_pod_and_goes_with_it(site):
    engine = site.build_engine("here")
    ask, line = start(site, engine)
    pod = find_pod(site, ask.id)
    assert ask.ticket not in json.dumps(pod)
    secret = site.cluster.objects.get("secrets", NAMESPACE, f"elastane-{ask.id}")
    assert base64.b64decode(secret["data"]["ticket"]).decode().strip() == ask.ticket
    assert pod["metadata"]["labels"]["elastane.dev/cluster"] == "here"
    line.exit(0)
    wait_until_gone(site, engine, ask.id)
    site.cluster.delete(pod["metadata"]["name"])
    assert site.cluster.objects.find("secrets", NAMESPACE, f"elastane-{ask.id}") is None


def test_a_pod_without_its_secret_gets_it_when_its_agent_is_asked_for_again(site):
    engine, ask = site.build_engine("here"), ask_for_agent(site)
    site.cluster.api.forbidden.add(("create", "secrets"))
    try:
        assert "secrets is forbidden" in site.run(engine.start_agents([ask]))[ask.id].why
    finally:
        site.cluster.api.forbidden.clear()
    wait_for_why(site, engine, ask.id, "prepares")
    # Another controller has taken over.
    assert site.run(site.build_engine("here").start_agents([ask])) == {}
    site.desk.meet(ask.id).exit(0)
    wait_until_gone(site, engine, ask.id)
    assert site.desk.count_starts(ask.id) == 1


def test_a_request_that_was_carried_out_without_an_answer_starts_no_second_pod(site):
    engine, ask = site.build_engine("here"), ask_for_agent(site)
    site.cluster.api.loses_answers = True
    try:
        refusal = site.run(engine.start_agents([ask]))[ask.id]
    finally:
        site.cluster.api.loses_answers = False
    assert not refusal.for_ever
    uid = find_pod(site, ask.id)["metadata"]["uid"]
    assert site.run(engine.start_agents([ask])) == {}
    assert find_pod(site, ask.id)["metadata"]["uid"] == uid
    site.desk.meet(ask.id).exit(0)
    wait_until_gone(site, engine, ask.id)
    assert site.desk.count_starts(ask.id) == 1


def test_pods_that_cannot_start_say_why(site):
    engine = site.build_engine("here")
    site.cluster.nodes.missing_images.add("missing:1")
    unknown = ask_for_agent(site, pool=POOL | {"image": "missing:1"})
    large = ask_for_agent(site, devices=3)
    assert site.run(engine.start_agents([unknown, large])) == {}
    wait_for_why(site, engine, unknown.id, "its image cannot be pulled (ImagePullBackOff): Back-off")
    wait_for_why(site, engine, large.id, "no node has room for it (Unschedulable): 0/3 nodes")
    states = {agent.state for agent in list_by_id(site, engine).values()}
    assert states == {"pending"}
    assert site.run(engine.end_agents([AgentEnd(large.id, 0.0)])) == {}
    assert wait_until_gone(site, engine, large.id).exit_code is None


def test_a_reached_quota_is_a_refusal_that_passes(site):
    engine = site.build_engine("here")
    site.cluster.api.quota = {f"requests.{DEVICE}": "1"}
    first, second = ask_for_agent(site), ask_for_agent(site)
    try:
        assert site.run(engine.start_agents([first])) == {}
        refusal = site.run(engine.start_agents([second]))[second.id]
    finally:
        site.cluster.api.quota = {}
    assert not refusal.for_ever
    assert "the quota of the namespace is reached" in refusal.why
    assert "exceeded quota: team" in refusal.why
    assert site.run(engine.start_agents([second])) == {}
    for ask in (first, second):
        site.desk.meet(ask.id).exit(0)


@pytest.mark.parametrize(
    ("pool", "why"),
    [
        (POOL | {"priorityClassName": "none"}, "no PriorityClass with name none"),
        (POOL | {"toleration": "a=b:Never"}, "is not KEY"),
    ],
)
def test_what_kubernetes_would_never_accept_is_refused_for_ever(site, pool, why):
    engine, ask = site.build_engine("here"), ask_for_agent(site, pool=pool)
    refusal = site.run(engine.start_agents([ask]))[ask.id]
    assert refusal.for_ever
    assert why in refusal.why


def test_lists_are_read_once_and_again_only_after_410(site):
    engine = site.build_engine("here")
    ask, line = start(site, engine)
    list_by_id(site, engine)
    site.cluster.api.requests.clear()
    for _ in range(5):
        list_by_id(site, engine)
    assert site.cluster.api.requests["list", "pods"] == 0
    for as_event in (True, False):
        site.cluster.api.gone_as_event = as_event
        site.cluster.api.requests.clear()
        # The watches end, and what happened since is forgotten.
        site.cluster.api.stop()
        site.cluster.objects.compact()
        assert isinstance(site.run(engine.list_agents()), Away)
        site.cluster.api.start()
        wait_until(
            lambda: not isinstance(site.run(engine.list_agents()), Away), "the API server answers again"
        )
        assert list_by_id(site, engine)[ask.id].state == "running"
        # The engine goes on only while it is asked.
        wait_until(
            lambda: site.cluster.api.requests["list", "pods"] == 1,
            "it was listed once",
            meanwhile=lambda: list_by_id(site, engine),
        )
    line.exit(0)
    assert wait_until_gone(site, engine, ask.id).exit_code == 0
    assert site.cluster.api.requests["list", "pods"] == 1


def test_what_happened_while_no_watch_was_open_is_seen_without_another_list(site):
    engine = site.build_engine("here")
    ask, line = start(site, engine)
    list_by_id(site, engine)
    site.cluster.api.requests.clear()
    site.cluster.api.stop()
    line.exit(3)
    assert isinstance(site.run(engine.list_agents()), Away)
    site.cluster.api.start()
    wait_until(lambda: not isinstance(site.run(engine.list_agents()), Away), "the API server answers again")
    assert wait_until_gone(site, engine, ask.id).exit_code == 3
    assert site.cluster.api.requests["list", "pods"] == 0


def test_a_watch_whose_time_is_over_goes_on_in_another_one(site, monkeypatch):
    monkeypatch.setattr(api_server, "WATCH_S", 1)
    engine = site.build_engine("here")
    ask, line = start(site, engine)
    site.cluster.api.requests.clear()
    wait_until(
        lambda: list_by_id(site, engine) and site.cluster.api.requests["watch", "pods"] > 2,
        "another watch is open",
    )
    line.exit(3)
    assert wait_until_gone(site, engine, ask.id).exit_code == 3
    assert site.cluster.api.requests["list", "pods"] == 1


def test_a_deleted_pod_is_leaving_and_then_gone_with_its_exit_code(site):
    engine = site.build_engine("here")
    ask, line = start(site, engine)
    list_by_id(site, engine)
    site.cluster.delete(f"elastane-{ask.id}", gracePeriodSeconds=int(GRACE_S))
    assert line.wait_for_line() == "SIGTERM"
    wait_until(lambda: list_by_id(site, engine)[ask.id].state == "leaving", "it is leaving")
    line.exit(0)
    over = wait_until_gone(site, engine, ask.id)
    assert over.exit_code == 0
    assert over.node in NODES
    # It is remembered, so the same agent begins no second time.
    assert site.run(engine.start_agents([ask])) == {}
    assert site.cluster.objects.find("pods", NAMESPACE, f"elastane-{ask.id}") is None


def test_an_agent_on_a_lost_node_holds_its_devices_until_it_is_removed_by_force(site):
    site.now_s = time.time()
    engine = site.build_engine("here")
    ask, line = start(site, engine)
    node = list_by_id(site, engine)[ask.id].node
    site.cluster.nodes.lost.add(node)
    condition = {"type": "Ready", "status": "Unknown", "reason": "NodeStatusUnknown"}
    site.cluster.objects.patch("nodes", "", node, {"status": {"conditions": [condition]}})
    try:
        wait_until(lambda: node not in list_names(site, engine, POOL), "the node is not listed")
        assert list_by_id(site, engine)[ask.id].state == "running"
        assert site.run(engine.end_agents([AgentEnd(ask.id, 0.0)])) == {}
        wait_until(lambda: list_by_id(site, engine)[ask.id].state == "leaving", "it is leaving")
        # Its node has time to say that it has ended.
        assert site.run(engine.end_agents([AgentEnd(ask.id, 0.0)])) == {}
        assert list_by_id(site, engine)[ask.id].state == "leaving"
        site.now_s += 2 * FORCE_AFTER_S
        assert site.run(engine.end_agents([AgentEnd(ask.id, 0.0)])) == {}
        wait_until(lambda: list_by_id(site, engine)[ask.id].state == "gone", "it is removed by force")
    finally:
        site.cluster.nodes.lost.clear()
        condition["status"] = "True"
        site.cluster.objects.patch("nodes", "", node, {"status": {"conditions": [condition]}})
    line.wait_for_end()


def test_cordoned_and_tainted_nodes_and_devices_of_others_are_not_listed(site):
    engine, objects = site.build_engine("here"), site.cluster.objects
    assert list_names(site, engine, POOL) == dict.fromkeys(NODES, 2)
    assert list_names(site, engine, {"cpusPerDevice": "3"}) == dict.fromkeys(NODES, 1)
    assert list_names(site, engine, POOL | {"nodeSelector": "kubernetes.io/hostname=n2"}) == {"n2": 2}
    assert list_names(site, engine, {"resource": "amd.com/gpu"}) == {}
    taint = {"key": "team", "value": "b", "effect": "NoSchedule"}
    objects.patch("nodes", "", "n1", {"spec": {"unschedulable": True}})
    objects.patch("nodes", "", "n2", {"spec": {"taints": [taint]}})
    pod = {
        "metadata": {"name": "other"},
        "spec": {
            "containers": [
                {
                    "name": "main",
                    "image": "other",
                    "command": ["/bin/sleep", "1000"],
                    "resources": {"requests": {DEVICE: "1"}},
                }
            ]
        },
    }
    try:
        objects.create("pods", NAMESPACE, pod)
        wait_until(lambda: list_names(site, engine, POOL) == {"n3": 1}, "one device is left")
        tolerant = POOL | {"toleration": "team=b:NoSchedule"}
        assert list_names(site, engine, tolerant) == {"n2": 2, "n3": 1}
    finally:
        objects.patch("nodes", "", "n1", {"spec": {"unschedulable": None}})
        objects.patch("nodes", "", "n2", {"spec": {"taints": None}})
        site.cluster.delete("other", gracePeriodSeconds=0)
    wait_until(lambda: list_names(site, engine, POOL) == dict.fromkeys(NODES, 2), "all devices are back")


def test_pods_of_agents_that_are_gone_for_long_are_removed(site):
    site.now_s = time.time()
    engine = site.build_engine("here")
    ask, line = start(site, engine)
    line.exit(1)
    wait_until_gone(site, engine, ask.id)
    assert find_pod(site, ask.id)["status"]["phase"] == "Failed"
    site.now_s += KEPT_S
    list_by_id(site, engine)
    wait_until(lambda: not site.cluster.list_pods(), "its pod is removed")
    assert list_by_id(site, engine)[ask.id].state == "gone"
    site.now_s += KEPT_S
    wait_until(lambda: ask.id not in list_by_id(site, engine), "it is forgotten")


def test_old_credentials_are_no_answer_and_nothing_is_concluded(site):
    engine = site.build_engine("here")
    token, site.cluster.api.token = site.cluster.api.token, "x"
    try:
        away = site.run(engine.list_agents())
        ask = ask_for_agent(site)
        refusal = site.run(engine.start_agents([ask]))[ask.id]
    finally:
        site.cluster.api.token = token
    assert isinstance(away, Away)
    assert "Unauthorized" in away.why
    assert not refusal.for_ever
    assert list_by_id(site, engine) == {}


def test_the_doctor_names_what_is_wrong(site):
    options = site.build_options(image="", volumes=(("home", "/shared"), ("data", "/data")))
    claim = {"metadata": {"name": "home"}, "spec": {"accessModes": ["ReadWriteOnce"]}}
    site.cluster.objects.create("persistentvolumeclaims", NAMESPACE, claim)
    pools = {
        "good": POOL | {"image": "train:1"},
        "bare": POOL,
        "nowhere": {"image": "train:1", "resource": "amd.com/gpu"},
        "typo": {"imag": "train:1"},
    }
    site.cluster.api.forbidden.add(("delete", "pods"))
    try:
        findings = site.run(examine_kubernetes(options, pools))
    finally:
        site.cluster.api.forbidden.clear()
    texts = [(finding.ok, finding.what) for finding in findings]
    assert [ok for ok, _ in texts] == [True, False, True, False, False, True, False, False, False], texts
    words = (
        "Kubernetes v1.34.0-double",
        f"may not delete pods in namespace {NAMESPACE}",
        f"namespace {NAMESPACE} is there",
        "claim home cannot be mounted on several nodes",
        "claim data does not exist",
        "pool good: 6 free devices",
        "pool bare: no image is set",
        "pool nowhere: no node has a free device amd.com/gpu",
        "imag",
    )
    for (_, text), word in zip(texts, words, strict=True):
        assert word in text
    assert all(finding.do for finding in findings if not finding.ok)
    assert not site.cluster.list_pods()
    with site.silence():
        findings = site.run(examine_kubernetes(site.build_options(answer_s=HASTY_S), pools))
    assert [finding.ok for finding in findings] == [False]


def test_the_doctor_says_what_elastic_jobs_need(site):
    options = site.build_options(elastic_jobs="vision")
    site.cluster.api.forbidden.add(("create", "events"))
    try:
        (version, right, namespace, definition, *_) = site.run(examine_kubernetes(options, {}))
    finally:
        site.cluster.api.forbidden.clear()
    assert (version.ok, right.ok, namespace.ok, definition.ok) == (True, False, True, False)
    assert "may not create events" in right.what
    assert "does not know ElasticJob" in definition.what
    assert "elastane kubernetes manifests" in definition.do
    site.cluster.objects.create("customresourcedefinitions", "", build_definition())
    findings = site.run(examine_kubernetes(options, {}))
    assert [finding.what for finding in findings if "ElasticJob" in finding.what] == [
        "the API server knows ElasticJob"
    ]
