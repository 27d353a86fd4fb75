"""The objects of an installation in Kubernetes, and the chart that is checked in."""

import json
import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

from elastane.cli.main import app
from elastane.cluster.engines.kubernetes.doctor import RIGHTS, RIGHTS_FOR_ELASTIC_JOBS
from elastane.cluster.engines.kubernetes.installation import objects
from elastane.cluster.engines.kubernetes.installation.readiness import (
    Readiness,
    judge_deployment,
    list_troubles,
)
from elastane.cluster.engines.kubernetes.kueue import KUEUE
from elastane.cluster.engines.kubernetes.refusals import ApiRefusal
from elastane.cluster.nouns.agents import Away
from elastane.common.documents import read_yaml
from tools.helm_chart import build_helm_chart

CHART = Path(__file__).parents[4] / "charts" / "elastane"
DOCKERFILE = CHART.parents[1] / "Dockerfile"


def print_manifests(*words: str) -> str:
    result = CliRunner().invoke(app, ["kubernetes", "manifests", *words])
    assert result.exit_code == 0, result.output
    return result.stdout


def test_the_chart_that_is_checked_in_is_up_to_date(request: pytest.FixtureRequest):
    wanted = build_helm_chart()
    if request.config.getoption("--rewrite"):
        for name, text in wanted.items():
            (CHART / name).parent.mkdir(parents=True, exist_ok=True)
            (CHART / name).write_text(text)
    there = {str(path.relative_to(CHART)): path.read_text() for path in CHART.rglob("*") if path.is_file()}
    assert there == wanted, "run this test with --rewrite, and read the difference"


def test_the_manifests_are_documents_of_yaml_in_the_namespace():
    found = [read_yaml(text) for text in print_manifests("team/train:1", "training").split("---\n")]
    assert json.loads(print_manifests("team/train:1", "training", "--json"))["items"] == found
    by_kind = {one["kind"]: one for one in found}
    assert len(found) == 14
    in_cluster = {"CustomResourceDefinition", "Namespace", "ClusterRole", "ClusterRoleBinding"}
    assert {one["metadata"].get("namespace") for one in found if one["kind"] not in in_cluster} == {
        "training"
    }
    deployment = by_kind["Deployment"]["spec"]
    assert deployment["strategy"] == {"type": "Recreate"}
    assert deployment["template"]["spec"]["containers"][0]["image"] == "team/train:1"
    assert by_kind["Service"]["spec"]["selector"] == deployment["selector"]["matchLabels"]


def test_a_namespace_that_is_none_is_refused():
    result = CliRunner().invoke(app, ["kubernetes", "manifests", "train:1", "No Name"])
    assert result.exit_code == 2


def test_the_controller_has_the_rights_that_its_doctor_asks_for_and_no_others():
    def list_granted(rights) -> set[tuple[str, str, str]]:
        return {
            (group, resource, verb)
            for group, resources, verbs in rights
            for resource in resources
            for verb in verbs
        }

    # Its doctor can do without these.
    by_hand = {("", name, "get") for name in ("namespaces", "persistentvolumeclaims")}
    by_hand |= {(KUEUE, "workloads", "list"), (KUEUE, "workloads", "watch"), (KUEUE, "localqueues", "get")}
    asked = (*RIGHTS, *RIGHTS_FOR_ELASTIC_JOBS)
    local = {(right.group, right.resource, right.verb) for right in asked if right.is_local}
    assert list_granted(objects.RIGHTS) - by_hand == local
    wide = {(right.group, right.resource, right.verb) for right in RIGHTS if not right.is_local}
    wide |= {(KUEUE, "workloadpriorityclasses", "get")}
    assert list_granted(objects.RIGHTS_IN_CLUSTER) == wide


def test_the_chart_differs_from_the_manifests_in_values_only():
    values = {
        ".Release.Namespace": "training",
        ".Values.home.size": "100Gi",
        ".Values.store.size": "10Gi",
    }
    built = objects.build_objects(objects.Installation(image="team/train:1", namespace="training"))
    templates = {name: text for name, text in build_helm_chart().items() if name.startswith("templates/")}
    assert len(templates) == len(built)
    for name, template in templates.items():
        text = re.sub(r" *\{\{- with .*?end \}\}\n", "", template, flags=re.DOTALL)
        text = re.sub(r"\{\{ required .*? \}\}", "team/train:1", text)
        text = re.sub(r"\{\{ ([\w.]+) \}\}", lambda match: values[match[1]], text)
        assert read_yaml(text) == built[Path(name).stem], name


def test_the_dockerfile_has_the_user_of_the_deployment():
    lines = DOCKERFILE.read_text().splitlines()
    assert f"USER {objects.USER}:{objects.USER}" in lines


@pytest.mark.parametrize(
    ("status", "is_available", "why"),
    [
        ({"observedGeneration": 2, "updatedReplicas": 1, "availableReplicas": 1}, True, ""),
        ({"observedGeneration": 1, "updatedReplicas": 1, "availableReplicas": 1}, False, "has not looked"),
        ({"observedGeneration": 2, "availableReplicas": 1}, False, ""),
        (
            {
                "observedGeneration": 2,
                "conditions": [{"type": "Available", "status": "False", "message": "no\n1"}],
            },
            False,
            "no",
        ),
        ({"observedGeneration": "2"}, False, "cannot be read"),
        ([], False, "cannot be read"),
    ],
)
def test_a_deployment_is_available_when_its_newest_version_is(status, is_available, why):
    document = json.dumps({"metadata": {"generation": 2}, "status": status}).encode()
    found = judge_deployment(document)
    assert (found.is_available, why in found.why) == (is_available, True)
    assert "\n" not in found.why


def test_an_answer_without_a_deployment_says_nothing_good():
    assert judge_deployment(Away("late")) == Readiness(False, "late")
    assert not judge_deployment(ApiRefusal(404, "NotFound")).is_available


@pytest.mark.parametrize("document", [b"", b"[]", b'{"items": 3}', b'{"items": [3, {"metadata": 1}]}'])
def test_pods_that_cannot_be_read_are_left_out(document):
    assert list_troubles(document) == ()


def test_a_pod_says_what_it_waits_for():
    waiting = {"reason": "ImagePullBackOff", "message": "x" * 9999}
    gated = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/3 nodes"}
    status = {"conditions": [gated], "containerStatuses": [{"state": {"waiting": waiting}}]}
    pods = [{"metadata": {"name": "elastane-1"}, "status": status}, {"metadata": {}, "status": []}]
    scheduled, pulled = list_troubles(json.dumps({"items": pods}).encode())
    assert scheduled == "pod elastane-1: Unschedulable: 0/3 nodes"
    assert pulled.startswith("pod elastane-1: ImagePullBackOff: xxx")
    assert len(pulled) < 500
