"""The engine for Kubernetes, with a double of its API server."""

import asyncio
from collections.abc import Iterator

import pytest

from elastane.cluster.engines.kubernetes.engine import KubernetesEngine
from elastane.cluster.engines.kubernetes.options import KubernetesOptions
from elastane.cluster.nouns.agents import AgentEngine
from tests.cluster.engines.agent_desk import COMMAND, AgentDesk
from tests.cluster.engines.api_double.cluster import DEVICE, SmallCluster, run_small_cluster
from tests.cluster.engines.contract import AgentEngineContract
from tests.waiting import WAIT_S, wait_until

pytestmark = pytest.mark.processes
POOL = {"resource": DEVICE}


class KubernetesSite:
    """An `EngineSite`."""

    pool = POOL

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
        engine = KubernetesEngine(cluster, self.build_options(answer_s=answer_s, **changes))
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
