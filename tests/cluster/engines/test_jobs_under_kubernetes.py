"""Jobs of a controller under Kubernetes: all is real, except for the API server and the containers."""

import os
import signal

import pytest

from elastane.cluster.engines.kubernetes.engine import KubernetesEngine
from elastane.cluster.engines.kubernetes.options import KubernetesOptions
from elastane.cluster.engines.local.engine import EngineDirectories
from elastane.run.attempts.verification import verify_run
from elastane.run.observability.run_files import read_run
from tests.cluster.engines.api_double.cluster import DEVICE, run_small_cluster
from tests.cluster.processes.small_cluster import SOURCES, open_cluster, read_json, submit_training
from tests.waiting import WAIT_S, wait_until

pytestmark = pytest.mark.processes
STEPS = 60
POOL = {"resource": DEVICE}


@pytest.fixture
def cluster():
    paths = os.pathsep.join([str(SOURCES), os.environ.get("PYTHONPATH", "")])
    passed = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}
    with run_small_cluster(passed | {"PYTHONPATH": paths}) as cluster:
        yield cluster


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


def count_members(run_elastane, name: str) -> int:
    held = read_json(run_elastane, "describe", name)["observed"].get("held", {})
    return sum(part["workers"] - part.get("absent", 0) for part in held.values())


def test_a_job_grows_and_loses_pods_under_kubernetes_and_trains_the_same_bytes(
    run_elastane, cluster, tmp_path, stage
):
    submit_training(run_elastane, "far", "--workers", "2", args=(f"--steps={STEPS}", "--seconds=0.1"))
    wait_until(lambda: count_members(run_elastane, "far") == 2, "2 workers train", state=cluster.read_logs)
    run_elastane("scale", "far", "3")
    wait_until(lambda: count_members(run_elastane, "far") == 3, "3 workers train", state=cluster.read_logs)
    # A user deletes a pod, which drains its agent.
    last = cluster.list_living()[-1]
    cluster.delete(last)
    wait_until(lambda: last not in cluster.list_living(), "it has left", state=cluster.read_logs)
    wait_until(
        lambda: len(cluster.list_living()) == 3, "another pod takes its place", state=cluster.read_logs
    )
    # A pod dies without a notice, and the API server is away meanwhile.
    second = cluster.list_living()[1]
    with cluster.api.silence():
        process = cluster.nodes.find_process(second, "training")
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    wait_until(lambda: second not in cluster.list_living(), "its end is seen", state=cluster.read_logs)
    state = lambda: read_json(run_elastane, "describe", "far")["state"]  # noqa: E731
    wait_until(lambda: state() == "finished", "it has finished", state=cluster.read_logs)
    run = read_run(EngineDirectories(tmp_path / "home").get_run_dir("far"))
    reference = stage.play(f"--steps={STEPS}")
    assert [line.loss for line in run.ledger] == [line.loss for line in reference.run.ledger]
    assert run.ledger[-1].digest == reference.run.ledger[-1].digest
    assert verify_run(run).problems == ()
    wait_until(lambda: not cluster.list_living(), "no pod runs", state=cluster.read_logs)
    assert all(starts == 1 for starts in cluster.nodes.starts.values())
    assert read_json(run_elastane, "describe", "far")["crashes"] == 0
