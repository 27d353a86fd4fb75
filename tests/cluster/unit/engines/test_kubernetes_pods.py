"""What a pod says about its agent, and the pod that is created for one."""

import json

import msgspec
import pytest

from elastane.cluster.engines.kubernetes.doctor import judge_volumes
from elastane.cluster.engines.kubernetes.manifest import (
    AGENT_LABEL,
    CLUSTER_LABEL,
    build_pod,
    build_secret,
)
from elastane.cluster.engines.kubernetes.options import KubernetesOptions, KubernetesPool, Toleration
from elastane.cluster.engines.kubernetes.pods import (
    FORCE_AFTER_S,
    AgentPod,
    choose_grace_s,
    decode_agent_pod,
    describe_pod,
)
from elastane.cluster.nouns.agents import AgentAsk
from elastane.common.errors import BadInput

REGISTRY = "registry"
NOW_S = 1_800_000_000.0
OPTIONS = KubernetesOptions(image="train:1")
LABELS = {CLUSTER_LABEL: "here", AGENT_LABEL: "here-1"}


def an_ask(**changes) -> AgentAsk:
    fields = {"id": "here-1", "job": "demo", "pool": {}, "devices": 1, "grace_s": 30.0, "ticket": "secret"}
    return AgentAsk(**fields | changes)


def a_pod(phase="Running", *, labels=LABELS, spec=None, deleted="", reason=None, **status) -> bytes:
    metadata = {"name": "elastane-here-1", "namespace": "training", "uid": "u", "labels": labels}
    if deleted:
        metadata |= {"deletionTimestamp": deleted, "deletionGracePeriodSeconds": 30}
    return json.dumps(
        {
            "metadata": metadata,
            "spec": {"nodeName": "n1"} if spec is None else spec,
            "status": {"phase": phase, "reason": reason, **status},
        }
    ).encode()


def ended(code, **fields):
    state = {"terminated": {"exitCode": code, "finishedAt": "2026-11-30T08:00:00Z", **fields}}
    return [{"name": "proxy", "state": {"running": {}}}, {"name": "agent", "state": state}]


def condition(kind, status, reason, message=""):
    return [{"type": kind, "status": status, "reason": reason, "message": message}]


def see(document: bytes):
    pod = decode_agent_pod(document, "here")
    assert pod is not None
    return describe_pod(pod)


def test_a_running_pod_is_a_running_agent_and_its_limit_is_known():
    spec = {"nodeName": "n1", "activeDeadlineSeconds": 100}
    seen = see(a_pod(spec=spec, startTime="2026-11-30T08:00:00Z"))
    assert (seen.id, seen.state, seen.node, seen.why) == ("here-1", "running", "n1", "")
    assert seen.until_s == 1796025700.0


@pytest.mark.parametrize(
    ("document", "state", "words"),
    [
        (a_pod("Pending", spec={}), "pending", "has not seen it"),
        (a_pod("Pending"), "pending", "its node prepares it"),
        (
            a_pod(
                "Pending", conditions=condition("PodScheduled", "False", "Unschedulable", "0/3 nodes\nfit")
            ),
            "pending",
            "no node has room for it (Unschedulable): 0/3 nodes fit",
        ),
        (
            a_pod("Pending", conditions=condition("PodScheduled", "False", "SchedulingGated")),
            "pending",
            "its queue has not admitted it (SchedulingGated)",
        ),
        (
            a_pod(
                "Pending",
                containerStatuses=[
                    {"name": "agent", "state": {"waiting": {"reason": "ErrImagePull", "message": "denied"}}}
                ],
            ),
            "pending",
            "its image cannot be pulled (ErrImagePull): denied",
        ),
        (a_pod(deleted="2026-11-30T08:00:30Z"), "leaving", ""),
        (
            a_pod(conditions=condition("DisruptionTarget", "True", "EvictionByEvictionAPI")),
            "running",
            "it is evicted (EvictionByEvictionAPI)",
        ),
        # A node that is lost keeps its pods running.
        (a_pod(conditions=condition("Ready", "False", "NodeNotReady")), "running", ""),
        (a_pod("Unknown"), "running", "Kubernetes calls its phase 'Unknown'"),
    ],
)
def test_a_pod_that_has_not_ended_says_how_its_agent_is(document, state, words):
    seen = see(document)
    assert seen.state == state
    assert words in seen.why
    assert (seen.exit_code, seen.ended_s) == (None, None)


@pytest.mark.parametrize(
    ("document", "code", "words"),
    [
        (a_pod("Succeeded", containerStatuses=ended(0, message="x")), 0, "it ended with exit code 0"),
        (a_pod("Failed", containerStatuses=ended(3, message="no torch")), 3, "exit code 3: no torch"),
        (a_pod("Failed", containerStatuses=ended(127)), 127, "could not start the command"),
        (a_pod("Failed", containerStatuses=ended(137)), None, "signal 9 ended it"),
        (a_pod("Failed", containerStatuses=ended(255)), 255, "exit code 255"),
        (
            a_pod("Failed", containerStatuses=ended(137, reason="OOMKilled")),
            None,
            "it used more memory than its pod has",
        ),
        (a_pod("Failed", reason="Evicted", message="disk"), None, "its node evicted it (Evicted): disk"),
        (
            a_pod("Failed", reason="DeadlineExceeded", containerStatuses=ended(0)),
            0,
            "its time limit ended it (DeadlineExceeded); it ended with exit code 0",
        ),
        (a_pod("Failed"), None, "its pod ended without an exit code"),
        # The container of another program beside the agent goes on.
        (a_pod("Running", containerStatuses=ended(0)), 0, "it ended with exit code 0"),
        (a_pod("Failed", reason="New", deleted="2026-11-30T08:00:30Z"), None, "gives the reason New"),
    ],
)
def test_a_pod_that_has_ended_says_why(document, code, words):
    seen = see(document)
    assert (seen.state, seen.exit_code) == ("gone", code)
    assert words in seen.why


def test_the_time_of_an_end_is_that_of_the_agent_or_of_its_last_readiness():
    assert see(a_pod("Succeeded", containerStatuses=ended(0))).ended_s == 1796025600.0
    time = {"lastTransitionTime": "2026-11-30T08:00:10Z"}
    for status, ended_s in (("False", 1796025610.0), ("True", None)):
        (ready,) = condition("Ready", status, "")
        document = a_pod("Failed", reason="Evicted", conditions=[ready | time])
        assert see(document).ended_s == ended_s
    # It was removed by force while it ran.
    pod = decode_agent_pod(a_pod(conditions=[ready | time]), "here")
    seen = describe_pod(msgspec.structs.replace(pod, is_deleted=True))
    assert (seen.state, seen.why, seen.exit_code, seen.ended_s) == ("gone", "its pod was removed", None, None)


def test_pods_of_others_are_left_out_and_one_that_cannot_be_read_runs():
    for labels in ({}, None, {CLUSTER_LABEL: "here", AGENT_LABEL: "there-1"}, LABELS | {CLUSTER_LABEL: "x"}):
        assert decode_agent_pod(a_pod(labels=labels), "here") is None
    for document in (b"", b"[]", b"{}", b'{"metadata": 1}', b"[" * 10_000, b"\xff"):
        assert decode_agent_pod(document, "here") is None
    damaged = a_pod(startTime="yesterday")
    assert see(damaged).state == "running"
    assert see(damaged).why == "its pod cannot be read"


def test_texts_of_pods_are_folded_and_bounded():
    status = {"reason": "\x1b[31m\nEvicted" * 100, "message": "a\nb\x07" * 10_000}
    seen = see(a_pod("Failed", **status))
    assert len(seen.why) < 700
    assert seen.why.isprintable()
    assert see(a_pod(spec={"nodeName": "../etc"})).node == ""


@pytest.mark.parametrize(
    ("deletes_in_s", "grace_s", "chosen"),
    [
        (None, 60, 60),
        # Kubernetes kills at once what gets no time at all, and forgets it.
        (None, 0, 1),
        (60.0, 60, None),
        (60.0, 30, 30),
        (60.0, 0, 1),
        (0.5, 0, None),
        (-FORCE_AFTER_S + 1, 0, None),
        (-FORCE_AFTER_S, 0, 0),
        (-FORCE_AFTER_S, 10, None),
    ],
)
def test_a_grace_only_becomes_shorter_and_force_comes_last(deletes_in_s, grace_s, chosen):
    by_s = None if deletes_in_s is None else NOW_S + deletes_in_s
    pod = AgentPod(name="p", uid="u", agent="here-1", deletes_by_s=by_s)
    assert choose_grace_s(pod, grace_s, NOW_S) == chosen


def test_a_pod_has_all_that_its_pool_and_its_engine_say_and_no_ticket():
    pool = KubernetesPool(
        resource="nvidia.com/gpu",
        cpus_per_device=8,
        memory_bytes_per_device=1 << 30,
        node_selector={"gpu": "a100"},
        tolerations=(Toleration(key="gpu", operator="Exists"),),
        priority_class="high",
        runtime_class="nvidia",
        queue="team-a",
    )
    options = KubernetesOptions(
        image="train:1",
        image_pull_secret=REGISTRY,
        service_account="agents",
        volumes=(("home", "/shared"), ("home", "/again"), ("data", "/data")),
        user=(1000, None),
        command=("/opt/bin/elastane",),
    )
    ask = an_ask(devices=2, until_s=NOW_S + 1000.0, job="a\nb")
    pod = build_pod(ask, pool, options, NOW_S)
    spec, (container,) = pod["spec"], pod["spec"]["containers"]
    assert "secret" not in json.dumps(pod).replace('"secret": {"secretName"', "")
    assert pod["metadata"]["name"] == "elastane-here-1"
    assert pod["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] == "team-a"
    assert pod["metadata"]["annotations"] == {"elastane.dev/job": "a\\nb"}
    assert (spec["restartPolicy"], spec["terminationGracePeriodSeconds"]) == ("Never", 30)
    assert spec["activeDeadlineSeconds"] == 970
    assert spec["automountServiceAccountToken"] is False
    assert container["command"][-3:] == ["/opt/bin/elastane", "join", "-"]
    assert container["resources"] == {
        "requests": {"nvidia.com/gpu": "2", "cpu": "16", "memory": str(2 << 30)},
        "limits": {"nvidia.com/gpu": "2", "memory": str(2 << 30)},
    }
    assert spec["nodeSelector"] == {"gpu": "a100"}
    assert spec["tolerations"] == [{"key": "gpu", "operator": "Exists"}]
    assert (spec["priorityClassName"], spec["runtimeClassName"]) == ("high", "nvidia")
    assert spec["serviceAccountName"] == "agents"
    assert spec["imagePullSecrets"] == [{"name": "registry"}]
    assert spec["securityContext"] == {"runAsUser": 1000}
    claims = [volume.get("persistentVolumeClaim", {}).get("claimName") for volume in spec["volumes"]]
    assert claims == [None, None, "home", "data"]
    paths = [mount["mountPath"] for mount in container["volumeMounts"]]
    assert paths == ["/run/elastane", "/dev/" + "shm", "/shared", "/again", "/data"]


def test_without_options_a_device_is_a_processor_and_what_an_agent_asks_for_counts_more():
    resources = build_pod(an_ask(), KubernetesPool(cpus_per_device=1), OPTIONS, NOW_S)["spec"]["containers"][
        0
    ]
    assert resources["resources"] == {"requests": {"cpu": "1"}}
    ask = an_ask(cpus=3, memory_bytes=5)
    resources = build_pod(ask, KubernetesPool(cpus_per_device=1), OPTIONS, NOW_S)["spec"]["containers"][0]
    assert resources["resources"] == {"requests": {"cpu": "3", "memory": "5"}, "limits": {"memory": "5"}}


@pytest.mark.parametrize(
    ("changes", "options", "words"),
    [
        ({"devices": 0}, OPTIONS, "asks for 0 devices"),
        ({"devices": 5000}, OPTIONS, "asks for 5000 devices"),
        ({"ticket": "a b"}, OPTIONS, "malformed"),
        ({"ticket": ""}, OPTIONS, "malformed"),
        ({"until_s": NOW_S + 30.0}, OPTIONS, "must end within 30 s"),
        ({}, KubernetesOptions(), "no image is set"),
        ({"image": "/shared/train.sif"}, OPTIONS, "cannot run the image /shared/train.sif"),
    ],
)
def test_what_cannot_be_a_pod_is_refused(changes, options, words):
    with pytest.raises(BadInput, match=words) as refused:
        build_pod(an_ask(**changes), KubernetesPool(cpus_per_device=1), options, NOW_S)
    assert "a b" not in str(refused.value)


@pytest.mark.parametrize(
    ("job", "pool", "template", "image"),
    [
        ("", "", "", "train:1"),
        ("", "pool:1", "", "pool:1"),
        ("reg.io/job:1", "pool:1", "", "reg.io/job:1"),
        # In the spelling of Pyxis.
        ("reg.io#job:1", "", "", "reg.io/job:1"),
        ("", "pool:1", "own:1", "own:1"),
        ("reg.io/job:1", "", "own:1", "own:1"),
    ],
)
def test_the_image_nearest_to_the_job_counts(job, pool, template, image):
    containers = [{"name": "x", "image": template}] if template else []
    options = {"template": json.dumps({"spec": {"containers": containers}})} if template else {}
    pod = build_pod(an_ask(image=job, options=options), KubernetesPool(image=pool), OPTIONS, NOW_S)
    assert pod["spec"]["containers"][0]["image"] == image


def test_a_secret_belongs_to_its_pod():
    secret = build_secret(an_ask(), "u-1")
    assert secret["stringData"] == {"ticket": "secret\n"}
    (owner,) = secret["metadata"]["ownerReferences"]
    assert (owner["kind"], owner["uid"]) == ("Pod", "u-1")
    assert secret["metadata"]["labels"] == {"app.kubernetes.io/managed-by": "elastane"} | LABELS


def test_an_agent_that_shares_no_home_has_one_in_its_pod():
    shared, own = (
        build_pod(
            an_ask(), KubernetesPool(), KubernetesOptions(image="train:1", shares_home=shares_home), NOW_S
        )["spec"]
        for shares_home in (True, False)
    )
    assert "env" not in shared["containers"][0]
    assert {"name": "own-home", "emptyDir": {}} not in shared["volumes"]
    (variable,) = own["containers"][0]["env"]
    mounted = {"name": "own-home", "mountPath": variable["value"]}
    assert variable["name"] == "ELASTANE_HOME"
    assert mounted in own["containers"][0]["volumeMounts"]
    assert {"name": "own-home", "emptyDir": {}} in own["volumes"]


def test_a_template_adds_variables_to_that_of_the_own_home():
    template = {"spec": {"containers": [{"name": "x", "env": [{"name": "KEY", "value": "1"}]}]}}
    options = KubernetesOptions(image="train:1", shares_home=False)
    ask = an_ask(options={"template": json.dumps(template)})
    agent = build_pod(ask, KubernetesPool(), options, NOW_S)["spec"]["containers"][0]
    assert [variable["name"] for variable in agent["env"]] == ["ELASTANE_HOME", "KEY"]


@pytest.mark.parametrize("shares_home", [True, False])
def test_only_a_shared_home_needs_a_volume(shares_home):
    (finding,) = judge_volumes({}, shares_home=shares_home)
    assert finding.ok is not shares_home
