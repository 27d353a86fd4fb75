"""A controller is killed after an API server has carried out its request, and before it has noted that."""

import os

import pytest

from elastane.cluster.client.cluster import Cluster
from elastane.cluster.engines.kubernetes.elastic_jobs.definition import build_definition
from elastane.cluster.nouns.config import Config, DeclaredEngine
from elastane.cluster.nouns.pools import Pool
from tests.cluster.engines.api_double.cluster import DEVICE, NAMESPACE, run_small_cluster
from tests.cluster.processes.real_controller import RealController
from tests.waiting import wait_until

pytestmark = pytest.mark.processes
WORKERS = 2
KILLS = int(os.environ.get("ELASTANE_KILLS", "20"))
"""How often the controller is killed in the long story: twice for each job."""
SLEEP = "/bin/sh -c 'exec sleep 100000'"
"""In place of an agent: it never arrives, and leaves at once when it is asked to."""
AT_START = (("patch", "elasticjobs"), ("create", "pods"), ("create", "secrets"))
AT_END = (("delete", "pods"), ("patch", "elasticjobs"))
"""Requests after which a controller is killed, in turn."""


class KilledController:
    """A real controller that is killed at certain requests, and begun again."""

    def __init__(self, cluster, controller: RealController) -> None:
        self.cluster, self.controller = cluster, controller
        self._request: tuple[str, str] | None = None
        cluster.api.before_answer = self._look_at

    def arm(self, request: tuple[str, str]) -> None:
        self._request = request

    def _look_at(self, *request: str) -> None:
        if request == self._request:
            self._request = None
            self.controller.kill()

    def wait_for_death_and_begin_again(self) -> None:
        wait_until(lambda: not self.controller.is_running, "it is killed", state=self.cluster.list_pods)
        self.controller.start()


@pytest.fixture
def cluster():
    with run_small_cluster() as cluster:
        cluster.objects.create("customresourcedefinitions", "", build_definition())
        yield cluster


@pytest.fixture
def killed(cluster, tmp_path):
    with RealController(tmp_path) as controller:
        options = {
            "kubeconfig": str(cluster.kubeconfig),
            "image": "train:1",
            "command": SLEEP,
            "elasticJobs": "vision",
            "answer": "30s",
        }
        pool = Pool(name="gpus", device="h100", devices=6, engine="east", options={"resource": DEVICE})
        engine = DeclaredEngine(name="east", kind="kubernetes", options=options)
        with Cluster(controller.url, controller.token) as client:
            client.documents.apply(Config(engines=(engine,), pools=(pool,)))
        killed = KilledController(cluster, controller)
        yield killed
        cluster.api.before_answer = lambda *_: None


def build_resource(name: str) -> dict:
    container = {"name": "train", "command": ["python", "/train.py"], "resources": {"limits": {DEVICE: "1"}}}
    return {
        "metadata": {"name": name},
        "spec": {
            "elasticPolicy": {"minReplicas": WORKERS, "maxReplicas": WORKERS},
            "template": {"spec": {"containers": [container]}},
        },
    }


@pytest.mark.parametrize("kills", [2, pytest.param(KILLS, marks=pytest.mark.long)])
def test_no_pod_and_no_job_is_lost_or_doubled(cluster, killed, kills):
    objects, rounds = cluster.objects, kills // 2
    for number in range(rounds):
        killed.arm(AT_START[(number + 1) % len(AT_START)])
        objects.create("elasticjobs", NAMESPACE, build_resource(f"job-{number}"))
        killed.wait_for_death_and_begin_again()
        wait_until(lambda: len(cluster.list_living()) == WORKERS, "its pods run", state=cluster.list_pods)
        with Cluster(killed.controller.url, killed.controller.token) as client:
            job = client.jobs.get(f"job-{number}")
            assert {f"elastane-{agent.id}" for agent in job.agents} == set(cluster.list_living())
            # No other was made, and none is asked for again.
            assert len(list(client.jobs.list())) == number + 1
        tickets = [secret["metadata"]["name"] for secret in objects.list_all("secrets", NAMESPACE)]
        assert set(tickets) == set(cluster.list_living())
        killed.arm(AT_END[number % len(AT_END)])
        objects.delete("elasticjobs", NAMESPACE, f"job-{number}", {})
        killed.wait_for_death_and_begin_again()
        wait_until(lambda: not objects.list_all("elasticjobs", NAMESPACE), "it is gone")
        assert not cluster.list_living()
        with Cluster(killed.controller.url, killed.controller.token) as client:
            assert client.jobs.get(f"job-{number}").state == "cancelled"
    assert len(cluster.nodes.starts) == WORKERS * rounds
    assert set(cluster.nodes.starts.values()) == {1}
