"""ElasticJobs as people use them: `kubectl`, the controller and the pods' processes are real."""

import json
import os
import shlex
import shutil
import subprocess

import pytest

from elastane.cluster.engines.kubernetes.elastic_jobs.definition import build_definition
from elastane.cluster.engines.kubernetes.engine import KubernetesEngine
from elastane.cluster.engines.kubernetes.installation.objects import Installation, list_manifests
from elastane.cluster.engines.kubernetes.options import decode_kubernetes_options
from elastane.cluster.engines.local.engine import EngineDirectories
from elastane.run.attempts.verification import verify_run
from elastane.run.observability.run_files import read_run
from tests.cluster.engines.api_double.cluster import DEVICE, NAMESPACE
from tests.cluster.processes.small_cluster import TRAINING, open_cluster, read_json
from tests.run.processes.skipping import skip_except_in_ci
from tests.waiting import WAIT_S, wait_until

pytestmark = pytest.mark.processes
STEPS = 60
QUEUE = "kueue.x-k8s.io/queue-name"


class Kubectl:
    """The real program, with the kubeconfig of a small cluster."""

    def __init__(self, cluster, home) -> None:
        self.cluster = cluster
        self._program = shutil.which("kubectl") or skip_except_in_ci("kubectl is not installed")
        self._environment = {"HOME": str(home), "PATH": os.environ["PATH"]}

    def __call__(self, *words: str, document: object = None, code: int = 0) -> str:
        result = subprocess.run(
            [self._program, "--kubeconfig", str(self.cluster.kubeconfig), *words],
            input=None if document is None else json.dumps(document),
            capture_output=True,
            text=True,
            timeout=2 * WAIT_S,
            check=False,
            env=self._environment,
        )
        assert result.returncode == code, f"{words}: {result.stdout}{result.stderr}"
        return result.stdout + result.stderr

    def apply(self, document: object, code: int = 0) -> str:
        # An older kubectl would load the schemas of all kinds, in a format of their own.
        return self("apply", "--validate=false", "-f", "-", document=document, code=code)

    def read_status(self, name: str) -> dict:
        """Return the status of a resource, without a process."""
        return self.cluster.objects.get("elasticjobs", NAMESPACE, name).get("status", {})


@pytest.fixture
def kubectl(cluster, tmp_path):
    kubectl = Kubectl(cluster, tmp_path)
    kubectl.apply(build_definition())
    return kubectl


@pytest.fixture
def run_elastane(stage, tmp_path, monkeypatch, cluster, kubectl):
    """Run a command of a controller with one pool, in Kubernetes, that follows ElasticJobs."""
    monkeypatch.setattr("elastane.cluster.controller.elastic_jobs.follower.LOOK_S", 0.2)
    options = {
        "kubeconfig": str(cluster.kubeconfig),
        "image": "train:1",
        "command": shlex.join(stage.build_command("elastane.cli.main")),
        "elasticJobs": "vision",
        "answer": "30s",
    }
    with open_cluster(
        stage,
        tmp_path,
        monkeypatch,
        open_engine=lambda id_: KubernetesEngine(id_, decode_kubernetes_options(options)),
        options={"resource": DEVICE},
        kind="kubernetes",
        engine_options=options,
    ) as run:
        yield run


def build_job(name: str, low: int, high: int, *arguments: str, **more) -> dict:
    container = {
        "name": "train",
        "image": "train:2",
        "command": ["python", TRAINING, *arguments],
        "env": [{"name": "FROM_TEMPLATE", "value": "yes"}],
        "resources": {"limits": {DEVICE: 1}},
    }
    return {
        "apiVersion": "elastane.dev/v1alpha1",
        "kind": "ElasticJob",
        "metadata": {"name": name, "labels": {QUEUE: "team-a"}},
        "spec": {
            "elasticPolicy": {"minReplicas": low, "maxReplicas": high},
            "template": {"metadata": {"labels": {"app": "demo"}}, "spec": {"containers": [container]}},
            **more,
        },
    }


def test_kubectl_takes_the_manifests_and_refuses_wrong_sizes(kubectl, cluster):
    manifests = list_manifests(Installation(image="team/train:1", namespace=NAMESPACE))
    for words in (("--dry-run=client",), ()):
        document = {"apiVersion": "v1", "kind": "List", "items": manifests}
        kubectl("apply", "--validate=false", *words, "-f", "-", document=document)
    assert cluster.objects.get("deployments", NAMESPACE, "elastane")["spec"]["replicas"] == 1
    refusal = kubectl.apply(build_job("wrong", 3, 2), code=1)
    assert "minReplicas must not be larger than maxReplicas" in refusal
    kubectl.apply(build_job("right", 1, 2))
    refusal = kubectl("scale", "elasticjob/right", "--replicas=3", code=1)
    assert "replicas must be 0, or from minReplicas to maxReplicas" in refusal
    assert kubectl("get", "ej", "right").split()[-4:-1] == ["1", "2", "team-a"]
    assert "No resources found" in kubectl("get", "elasticjobs", "--selector=app=other")


@pytest.mark.long
def test_kubectl_applies_scales_waits_for_and_deletes_a_job_whose_pods_are_real(
    run_elastane, kubectl, cluster, tmp_path
):
    def wait_for(name: str, what: str, fits) -> None:
        wait_until(
            lambda: fits(kubectl.read_status(name)),
            what,
            state=lambda: f"{kubectl.read_status(name)}\n{cluster.read_logs()}",
        )

    assert "created" in kubectl.apply(build_job("far", 1, 3, f"--steps={STEPS}", "--seconds=0.1", replicas=1))
    wait_for("far", "a worker trains", lambda status: status.get("replicas") == 1)
    (pod, *_) = cluster.list_pods()
    assert pod["metadata"]["labels"]["app"] == "demo"
    assert pod["metadata"]["ownerReferences"][0]["name"] == "far"
    assert pod["spec"]["containers"][0]["image"] == "train:2"
    kubectl("scale", "elasticjob/far", "--replicas=2")
    wait_for("far", "2 workers train", lambda status: status.get("replicas") == 2)
    columns, line = kubectl("get", "elasticjobs").splitlines()
    assert columns.split() == ["NAME", "SIZE", "MIN", "MAX", "STEP", "QUEUE", "REASON", "AGE"]
    assert line.split()[:4] == ["far", "2", "1", "3"]
    assert "team-a" in line
    described = kubectl("describe", "elasticjob", "far")
    assert read_json(run_elastane, "explain", "far")["explanation"]["sentences"][0] in described
    assert "Submitted" in described
    kubectl("wait", "--for=condition=Complete", "elasticjob/far", f"--timeout={WAIT_S:.0f}s")
    run = read_run(EngineDirectories(tmp_path / "home").get_run_dir("far"))
    assert (run.ledger[-1].step, verify_run(run).problems) == (STEPS, ())
    # One that is deleted while it trains is drained first; one that is made again is another job.
    kubectl("delete", "elasticjob", "far")
    kubectl.apply(build_job("far", 1, 1, "--steps=100000", "--seconds=0.1"))
    wait_for("far", "it trains", lambda status: status.get("replicas") == 1)
    second = kubectl.read_status("far")["job"]
    assert second != "far"
    kubectl("delete", "elasticjob", "far", f"--timeout={WAIT_S:.0f}s")
    job = read_json(run_elastane, "describe", second)
    assert (job["state"], job["crashes"], job["team"], job["queue"]) == ("cancelled", 0, "vision", "team-a")
    assert not cluster.list_living()
    assert verify_run(read_run(EngineDirectories(tmp_path / "home").get_run_dir(second))).problems == ()
    assert all(starts == 1 for starts in cluster.nodes.starts.values())
    assert not cluster.objects.list_all("elasticjobs", NAMESPACE)
