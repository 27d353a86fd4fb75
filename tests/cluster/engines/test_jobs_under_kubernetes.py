"""Jobs of a controller under Kubernetes: all is real, except for the API server and the containers."""

import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from elastane.cluster.engines.kubernetes.engine import KubernetesEngine
from elastane.cluster.engines.kubernetes.options import KubernetesOptions
from elastane.cluster.engines.local.engine import EngineDirectories
from elastane.run.observability.run_files import read_run
from tests.cluster.engines.api_double.cluster import DEVICE, SmallCluster
from tests.cluster.engines.job_contract import JobContract
from tests.cluster.processes.small_cluster import (
    assert_same_bytes,
    open_cluster,
    read_json,
    submit_training,
    wait_for_members,
    wait_for_state,
)
from tests.waiting import WAIT_S, wait_until

pytestmark = pytest.mark.processes
STEPS = 60
POOL = {"resource": DEVICE}


@pytest.fixture
def run_elastane(stage, tmp_path, monkeypatch, cluster):
    """Run a command of a controller with one pool, in Kubernetes."""
    options = KubernetesOptions(
        command=stage.build_command("elastane.cli.main"),
        kubeconfig=str(cluster.kubeconfig),
        image="train:1",
        answer_s=WAIT_S,
    )
    with open_cluster(
        stage,
        tmp_path,
        monkeypatch,
        open_engine=lambda id_: KubernetesEngine(id_, options),
        options=POOL,
        kind="kubernetes",
    ) as run:
        yield run


class KubernetesJobSite:
    """A `JobSite`: the parts of its job are pods, which a user deletes, so that they get a notice."""

    notifies = True

    def __init__(self, run_elastane: Callable, home: Path, cluster: SmallCluster) -> None:
        self.run_elastane, self.home = run_elastane, home
        self.list_parts, self.take_away = cluster.list_living, cluster.delete
        self.read_logs = cluster.read_logs


class TestJobsUnderKubernetes(JobContract):
    """The contract of all engines."""

    @pytest.fixture
    def site(self, run_elastane, tmp_path, cluster) -> KubernetesJobSite:
        return KubernetesJobSite(run_elastane, tmp_path / "home", cluster)


@pytest.mark.long
def test_a_pod_that_dies_while_the_api_server_is_away_is_replaced(run_elastane, cluster, tmp_path, stage):
    submit_training(run_elastane, "far", "--workers", "2", args=(f"--steps={STEPS}", "--seconds=0.1"))
    wait_for_members(run_elastane, "far", 2, cluster.read_logs)
    second = cluster.list_living()[1]
    with cluster.api.silence():
        process = cluster.nodes.find_process(second, "training")
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    wait_until(lambda: second not in cluster.list_living(), "its end is seen", state=cluster.read_logs)
    wait_for_state(run_elastane, "far", "finished", cluster.read_logs)
    run = read_run(EngineDirectories(tmp_path / "home").get_run_dir("far"))
    assert_same_bytes(run, stage.play(f"--steps={STEPS}").run)
    wait_until(lambda: not cluster.list_living(), "no pod runs", state=cluster.read_logs)
    assert len(cluster.nodes.starts) == 3
    assert all(starts == 1 for starts in cluster.nodes.starts.values())
    assert read_json(run_elastane, "describe", "far")["crashes"] == 0
