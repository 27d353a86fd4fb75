"""The spec of a job, and its pods, from an ElasticJob; and what the definition refuses."""

import json

import pytest

from elastane.cluster.engines.kubernetes.elastic_jobs.definition import build_definition
from elastane.cluster.engines.kubernetes.elastic_jobs.job import change_described_job, describe_job
from elastane.cluster.engines.kubernetes.elastic_jobs.resource import ElasticJob, decode_elastic_job
from elastane.cluster.engines.kubernetes.manifest import build_pod
from elastane.cluster.engines.kubernetes.options import KubernetesOptions, decode_kubernetes_pool
from elastane.cluster.nouns.agents import AgentAsk
from elastane.cluster.nouns.pools import Pool
from elastane.common.errors import BadField, BadInput
from tests.cluster.engines.api_double.custom_resources import CustomResources
from tests.cluster.engines.api_double.objects import ApiError, Objects

DEVICE = "nvidia.com/gpu"
POOLS = (
    Pool(name="a", device="h100", devices=8, engine="east", options={"resource": DEVICE}),
    Pool(name="b", device="a100", devices=8, engine="east", options={"resource": DEVICE}),
    Pool(name="c", device="cpu", devices=8, engine="east"),
)


def build_template(**container) -> dict:
    usual = {"name": "train", "command": ["python", "/shared/train.py"]}
    return {"spec": {"containers": [usual | container]}}


def make_resource(spec: object, **labels: str) -> ElasticJob:
    return ElasticJob(
        name="first",
        namespace="ns",
        uid="12345678-9",
        version="1",
        labels=labels,
        spec=json.dumps(spec).encode(),
    )


def describe(spec: dict):
    resource = make_resource({"template": build_template()} | spec)
    return describe_job(resource, "first", team="vision", engine="east", pools=POOLS)


def test_devices_are_those_of_the_container():
    limits = {"resources": {"limits": {DEVICE: 2, "memory": "8Gi"}}}
    assert describe({"template": build_template(**limits)}).spec.worker_devices == 2
    assert describe({"template": build_template(**limits)}).spec.resources_per_worker.kinds == (
        "a100",
        "h100",
    )
    cpus = {"resources": {"requests": {"cpu": "1500m"}}}
    assert describe({"template": build_template(**cpus)}).spec.worker_devices == 2
    assert describe({}).spec.worker_devices == 1
    assert describe({}).spec.resources_per_worker.kinds == ("cpu",)


def test_a_wish_limits_the_sizes():
    policy = {"minReplicas": 2, "maxReplicas": 8}
    assert describe({"elasticPolicy": policy, "replicas": 4}).spec.elastic_policy.limits == (2, 4)
    values = {"replicaDiscreteValues": [2, 4, 8]}
    limited = describe({"elasticPolicy": values, "replicas": 4}).spec.elastic_policy
    assert limited.replica_discrete_values == (2, 4)
    assert describe({"elasticPolicy": policy, "replicas": 0}).spec.run_policy.suspend


@pytest.mark.parametrize(
    ("spec", "field"),
    [
        ({"elasticPolicy": {"minReplica": 1}}, "elasticPolicy.minReplica"),
        ({"elasticPolicy": {"minReplicas": "two"}}, "elasticPolicy.minReplicas"),
        ({"elasticPolicy": {"minReplicas": 2, "maxReplicas": 3}, "replicas": 1}, "replicas"),
        ({"elasticPolicy": {"replicaDiscreteValues": [2, 4]}, "replicas": 3}, "replicas"),
        ({"template": {"spec": {"containers": []}}}, "template.spec.containers[0].command"),
        (
            {"template": {"spec": {"containers": [{"command": "train"}]}}},
            "template.spec.containers[0].command",
        ),
        (
            {"template": build_template(resources={"limits": {DEVICE: 1, "amd.com/gpu": 1}})},
            "template.spec.containers[0].resources",
        ),
        (
            {"template": build_template(resources={"limits": {"cpu": "x"}})},
            "template.spec.containers[0].resources",
        ),
        (
            {"template": build_template(resources={"limits": {"cpu": 0}})},
            "template.spec.containers[0].resources",
        ),
        ({"template": build_template(args=["x" * 200_000])}, "template"),
    ],
)
def test_a_wrong_field_is_named(spec, field):
    with pytest.raises(BadField) as error:
        describe(spec)
    assert error.value.field == field


@pytest.mark.parametrize("spec", [b"[]", b"{", b"{}" * 9, b'{"a":' * 100 + b"1" + b"}" * 100])
def test_a_spec_that_is_none_is_refused(spec):
    resource = ElasticJob(name="first", namespace="ns", uid="1", version="1", spec=spec)
    with pytest.raises(BadField):
        describe_job(resource, "first", team="vision", engine="east", pools=POOLS)


@pytest.mark.parametrize("document", [b"", b"{}", b'{"metadata": {"name": 3}}', b'{"metadata": []}'])
def test_a_resource_without_metadata_costs_only_itself(document):
    assert decode_elastic_job(document) is None


def test_a_status_that_others_wrote_is_no_obstacle():
    metadata = {"name": "first", "namespace": "ns", "uid": "1", "resourceVersion": "1"}
    found = decode_elastic_job(json.dumps({"metadata": metadata, "status": "x"}).encode())
    assert (found.status, found.conditions) == ({}, {})
    odd = {"conditions": [{"type": 3}]}
    assert decode_elastic_job(json.dumps({"metadata": metadata, "status": odd}).encode()).conditions == {}


def test_what_a_run_depends_on_cannot_be_changed():
    before, other = describe({}).spec, describe({"training": {"seed": 3}}).spec
    with pytest.raises(BadField, match="training"):
        change_described_job(before, other)


# -- pods ----------------------------------------------------------------------------------------------------


def build_templated_pod(template: dict, pool: dict | None = None, **options) -> dict:
    described = describe({"template": template})
    ask = AgentAsk(
        id="c1-1",
        job="first",
        pool=pool or {},
        options=described.options,
        devices=described.spec.worker_devices,
        grace_s=30,
        ticket="secret",
    )
    return build_pod(ask, decode_kubernetes_pool(ask.pool), KubernetesOptions(**options), 0.0)


def test_a_pod_has_what_its_template_adds_and_what_its_agent_needs():
    template = build_template(
        image="team/train:2",
        args=["--lr", "3"],
        workingDir="/shared",
        env=[{"name": "KEY", "valueFrom": {"secretKeyRef": {"name": "keys", "key": "wandb"}}}],
        volumeMounts=[{"name": "data", "mountPath": "/data"}],
    )
    template["metadata"] = {
        "labels": {"app": "demo", "elastane.dev/agent": "c9-9", "app.kubernetes.io/managed-by": "x"},
        "annotations": {"note": "mine"},
    }
    template["spec"] |= {
        "nodeSelector": {"zone": "b"},
        "volumes": [{"name": "data", "emptyDir": {}}],
        "tolerations": [{"key": "spot"}],
        "restartPolicy": "Always",
        "serviceAccountName": "trainer",
    }
    template["spec"]["containers"].append({"name": "side", "image": "side:1"})
    pod = build_templated_pod(
        template, {"nodeSelector": "gpu=a100", "toleration": "gpu"}, volumes=(("home", "/shared"),)
    )
    spec, (agent, side) = pod["spec"], pod["spec"]["containers"]
    labels = pod["metadata"]["labels"]
    assert (labels["app"], labels["elastane.dev/agent"], labels["elastane.dev/elastic-job"]) == (
        "demo",
        "c1-1",
        "first",
    )
    assert labels["app.kubernetes.io/managed-by"] == "elastane"
    assert pod["metadata"]["annotations"]["note"] == "mine"
    assert pod["metadata"]["ownerReferences"][0]["uid"] == "12345678-9"
    assert (agent["name"], agent["image"], side["name"]) == ("agent", "team/train:2", "side")
    assert agent["command"][-2:] == ["join", "-"]
    assert "args" not in agent
    assert "workingDir" not in agent
    assert agent["env"][0]["valueFrom"]
    assert {mount["mountPath"] for mount in agent["volumeMounts"]} == {
        "/run/elastane",
        "/dev/shm",  # noqa: S108 - a path of the pod
        "/shared",
        "/data",
    }
    assert {volume["name"] for volume in spec["volumes"]} == {"ticket", "shm", "volume-0", "data"}
    assert spec["nodeSelector"] == {"gpu": "a100", "zone": "b"}
    assert [toleration["key"] for toleration in spec["tolerations"]] == ["gpu", "spot"]
    assert (spec["restartPolicy"], spec["serviceAccountName"]) == ("Never", "trainer")


def test_the_shared_memory_of_a_template_replaces_ours():
    template = build_template(image="x:1", volumeMounts=[{"name": "mine", "mountPath": "/dev/shm"}])  # noqa: S108
    template["spec"]["volumes"] = [{"name": "mine", "emptyDir": {"medium": "Memory", "sizeLimit": "8Gi"}}]
    spec = build_templated_pod(template)["spec"]
    assert [mount["name"] for mount in spec["containers"][0]["volumeMounts"]] == ["ticket", "mine"]
    assert [volume["name"] for volume in spec["volumes"]] == ["ticket", "mine"]


def test_a_limit_of_a_template_is_a_request_too():
    limits = {DEVICE: 1, "cpu": "500m", "memory": "4Gi"}
    pool = {"resource": DEVICE, "cpusPerDevice": "8", "memoryPerDevice": "64G"}
    template = build_template(image="x:1", resources={"limits": limits, "requests": {"memory": "2Gi"}})
    (agent,) = build_templated_pod(template, pool)["spec"]["containers"]
    assert agent["resources"] == {"limits": limits, "requests": limits | {"memory": "2Gi"}}


def test_a_pod_without_any_image_is_refused():
    with pytest.raises(BadInput, match="no image"):
        build_templated_pod(build_template())


@pytest.mark.parametrize(
    "part", [{"volumes": {"x": 1}}, {"nodeSelector": ["x"]}, {"tolerations": ["x"]}, {"containers": ["x"]}]
)
def test_a_template_of_a_wrong_shape_is_refused(part):
    described = describe({"template": build_template(image="x:1")})
    template = json.loads(described.options["template"])
    template["spec"] |= part
    options = described.options | {"template": json.dumps(template)}
    ask = AgentAsk(id="c1-1", job="first", pool={}, options=options, devices=1, grace_s=1, ticket="-")
    with pytest.raises(BadInput, match="template"):
        build_pod(ask, decode_kubernetes_pool({}), KubernetesOptions(), 0.0)


# -- the definition ------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def admission():
    objects = Objects()
    objects.create("customresourcedefinitions", "", build_definition())
    return CustomResources(objects)


def admit(admission, before: dict | None = None, *, strict: bool = True, **spec) -> dict:
    document = {
        "metadata": {"name": spec.pop("name", "first")},
        "spec": {"template": build_template()} | spec,
    }
    return admission.admit("elasticjobs", document, before, strict=strict)


def test_the_definition_takes_what_the_controller_takes(admission):
    policy = {"minReplicas": 1, "maxReplicas": 8, "scalingTimeoutInSeconds": 2.5}
    training = {"seed": 1, "copies": "all", "checkpoints": {"every": "10 min"}, "log": ["wandb"]}
    run = {"suspend": True, "ttlSecondsAfterFinished": 60}
    spec = {"elasticPolicy": policy, "training": training, "runPolicy": run, "replicas": 2}
    admitted = admit(admission, **spec, contract="torchrun", nprocPerNode=2)
    described = describe(admitted["spec"])
    assert described.spec.nproc_per_node == 2
    assert admit(admission)["spec"]["elasticPolicy"] == {"minReplicas": 1, "maxReplicas": 1}
    divided = describe(admit(admission, processes=4)["spec"]).spec
    assert (divided.processes, divided.worker_devices) == (4, 4)


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ({"elasticPolicy": {"minReplicas": 3, "maxReplicas": 2}}, "larger than maxReplicas"),
        ({"elasticPolicy": {"minReplicas": 0}}, "greater than or equal to 1"),
        ({"elasticPolicy": {"replicaIncrementStep": 2, "replicaDiscreteValues": [1]}}, "cannot be combined"),
        ({"elasticPolicy": {"maxReplicas": 4}, "replicas": 5}, "from minReplicas to maxReplicas"),
        ({"elasticPolicy": {"replicaDiscreteValues": [2, 4]}, "replicas": 3}, "one of replicaDiscreteValues"),
        ({"replicas": -1}, "greater than or equal to 0"),
        ({"nprocPerNode": 2}, "requires contract: torchrun"),
        ({"contract": "horovod"}, "Unsupported value"),
        ({"processes": 3}, "Unsupported value"),
        ({"training": {"numerics": "sloppy"}}, "Unsupported value"),
        ({"template": {"spec": {"containers": []}}}, "at least 1"),
        ({"template": {"spec": {"containers": [{"name": "x"}]}}}, "Required value"),
        ({"name": "x" * 55}, "more than 54"),
        ({"tempo": 3}, "unknown field"),
    ],
)
def test_the_definition_refuses_what_cannot_be(admission, spec, words):
    with pytest.raises(ApiError, match=words):
        admit(admission, **spec)


def test_the_training_of_a_resource_stays(admission):
    before = admit(admission, training={"seed": 1})
    assert admit(admission, before, training={"seed": 1}, replicas=1)
    for training in ({"training": {"seed": 2}}, {}):
        with pytest.raises(ApiError, match="training cannot be changed"):
            admit(admission, before, **training)
    with pytest.raises(ApiError, match="training cannot be changed"):
        admit(admission, admit(admission), training={"seed": 2})
