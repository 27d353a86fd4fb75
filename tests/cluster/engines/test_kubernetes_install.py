"""Installing a controller, with a double of the API server. Nothing runs in its pod."""

import base64
import json

import pytest
from cryptography import x509
from typer.testing import CliRunner

from elastane.cli.main import app
from elastane.cluster.engines.kubernetes.installation import install
from tests.cluster.engines.api_double.cluster import run_small_cluster
from tests.cluster.engines.api_double.objects import format_time, now

pytestmark = pytest.mark.processes
PLACE = "lab2"
OBJECTS = 14
"""The definition, the namespace and twelve others; then the secret."""


@pytest.fixture
def cluster(monkeypatch):
    with run_small_cluster() as cluster:
        monkeypatch.setenv("KUBECONFIG", str(cluster.kubeconfig))
        monkeypatch.setattr(install, "AGAIN_S", 0.05)
        yield cluster


def run(*words: str, code: int = 0):
    result = CliRunner().invoke(app, ["kubernetes", "install", "team/train:1", PLACE, *words])
    assert result.exit_code == code, (result.output, result.stderr)
    return result


def list_outcomes(result) -> list[str]:
    found = [line.split()[0] for line in result.stdout.splitlines() if line.strip()]
    return [word for word in found if word in ("created", "changed", "unchanged")]


def let_it_be_available(cluster) -> None:
    """Answer each new Deployment as a cluster does in which its pods begin at once."""

    def report(verb: str, resource: str) -> None:
        if (verb, resource) == ("patch", "deployments"):
            status = {"observedGeneration": 1, "updatedReplicas": 1, "availableReplicas": 1}
            found = cluster.objects.get("deployments", PLACE, "elastane")
            cluster.objects.replace("deployments", PLACE, found | {"status": status}, is_status=True)

    cluster.api.before_answer = report


def test_an_installation_says_what_it_creates_and_changes_nothing_when_it_is_repeated(cluster):
    let_it_be_available(cluster)
    first = run()
    assert list_outcomes(first) == ["created"] * (OBJECTS + 1)
    assert "the controller is available" in first.stdout
    assert "--option controller=https://elastane.lab2:7425" in first.stdout
    secret = cluster.objects.get("secrets", PLACE, "elastane-tls")
    text = base64.b64decode(secret["data"]["tls.crt"])
    names = x509.load_pem_x509_certificate(text).extensions.get_extension_for_class(
        x509.SubjectAlternativeName
    )
    assert names.value.get_values_for_type(x509.DNSName) == ["elastane.lab2"]
    assert base64.b64decode(secret["data"]["tls.key"]).startswith(b"-----BEGIN PRIVATE KEY")
    versions = {one["metadata"]["uid"]: one["metadata"]["resourceVersion"] for one in list_all(cluster)}
    assert list_outcomes(run()) == ["unchanged"] * (OBJECTS + 1)
    assert versions == {
        one["metadata"]["uid"]: one["metadata"]["resourceVersion"] for one in list_all(cluster)
    }
    # Another image is a change of the Deployment, and of nothing else.
    again = CliRunner().invoke(app, ["kubernetes", "install", "team/train:2", PLACE, "--json"])
    assert again.exit_code == 0, again.stderr
    found = json.loads(again.stdout)
    assert found["namespace"] == PLACE
    changed = [one["object"] for one in found["objects"] if one["outcome"] != "unchanged"]
    assert changed == ["Deployment elastane"]


def list_all(cluster):
    kinds = ("roles", "clusterroles", "services", "persistentvolumeclaims", "secrets", "networkpolicies")
    return [one for kind in kinds for one in cluster.objects.list_all(kind)]


def test_without_rights_nothing_is_changed(cluster):
    cluster.api.forbidden |= {("create", "clusterroles"), ("patch", "deployments")}
    result = run(code=2)
    assert "create clusterroles in the whole cluster" in result.stderr
    assert "patch deployments in namespace lab2" in result.stderr
    assert "nothing was changed" in result.stderr
    assert cluster.objects.find("namespaces", "", PLACE) is None


def test_fields_of_another_program_are_left_to_it(cluster):
    cluster.objects.create("namespaces", "", {"metadata": {"name": PLACE}})
    theirs = {"metadata": {"name": "elastane"}, "spec": {"replicas": 2}}
    cluster.objects.apply("deployments", PLACE, "elastane", theirs, "helm")
    result = run(code=1)
    assert 'conflict with "helm": .spec.replicas' in result.stderr
    assert "belong to another program" in result.stderr
    assert cluster.objects.get("deployments", PLACE, "elastane")["spec"]["replicas"] == 2


def test_a_controller_that_never_becomes_available_is_explained(cluster, monkeypatch):
    monkeypatch.setattr(install, "AVAILABLE_S", 0.3)
    cluster.objects.create("namespaces", "", {"metadata": {"name": PLACE}})
    pod = {
        "metadata": {
            "name": "elastane-7",
            "labels": {"app.kubernetes.io/name": "elastane", "app.kubernetes.io/component": "controller"},
        },
        "spec": {"nodeName": "away", "containers": [{"name": "controller", "image": "team/train:1"}]},
        "status": {
            "phase": "Pending",
            "startTime": format_time(now()),
            "containerStatuses": [
                {"state": {"waiting": {"reason": "ImagePullBackOff", "message": "no such\nimage"}}}
            ],
        },
    }
    cluster.nodes.lost.add("away")
    cluster.objects.create("pods", PLACE, pod)
    result = run(code=1)
    assert "is not available after 0.3 s" in result.stderr
    assert "pod elastane-7: ImagePullBackOff: no such image" in result.stderr
    assert f"kubectl -n {PLACE} describe pods" in result.stderr


def test_an_api_server_that_does_not_answer_is_named(cluster, monkeypatch):
    monkeypatch.setattr(install, "ANSWER_S", 0.3)
    with cluster.api.silence():
        result = run(code=1)
    assert "cannot be asked" in result.stderr
    assert "nothing was changed" in result.stderr


@pytest.mark.parametrize("word", ["Lab", "a" * 64, "-x"])
def test_a_namespace_that_cannot_be_is_refused(word):
    result = CliRunner().invoke(app, ["kubernetes", "install", "--", "team/train:1", word])
    assert result.exit_code == 2
    assert "is not a name of a namespace" in result.stderr
