"""How pods ask a queue of Kueue, and what its workloads say about pods, however odd they are."""

import json

import pytest

from elastane.cluster.engines.kinds import find_queue
from elastane.cluster.engines.kubernetes.kueue import (
    CLASS_LABEL,
    COUNT_NOTE,
    GROUP_LABEL,
    QUEUE_LABEL,
    RETRIABLE_NOTE,
    decode_workload,
    explain_waiting,
)
from elastane.cluster.engines.kubernetes.manifest import AGENT_LABEL, CLUSTER_LABEL, build_pod
from elastane.cluster.engines.kubernetes.options import KubernetesOptions, KubernetesPool
from elastane.cluster.engines.kubernetes.pod_template import TEMPLATE
from elastane.cluster.engines.kubernetes.pods import decode_agent_pod, describe_pod
from elastane.cluster.nouns.agents import AgentAsk, AgentGang
from elastane.cluster.nouns.config import DeclaredEngine

OPTIONS = KubernetesOptions(image="train:1")
GANG = AgentGang(number=7, size=4)
KUBERNETES, SLURM = DeclaredEngine(name="east", kind="kubernetes"), DeclaredEngine(name="hpc", kind="slurm")


def make_metadata(pool: KubernetesPool, **changes):
    fields = {"id": "here-9", "job": "demo", "pool": {}, "devices": 1, "grace_s": 30.0, "ticket": "secret"}
    return build_pod(AgentAsk(**fields | changes), pool, OPTIONS, 0.0)["metadata"]


def make_template(**metadata) -> dict[str, str]:
    return {TEMPLATE: json.dumps({"metadata": metadata, "spec": {"containers": [{"name": "a"}]}})}


def test_the_pods_of_a_gang_are_one_group_and_others_have_the_priority_of_growth():
    pool = KubernetesPool(queue="team-a", workload_priority_class="high", growth_priority_class="low")
    member = make_metadata(pool, gang=GANG)
    labels = {QUEUE_LABEL: "team-a", CLASS_LABEL: "high", GROUP_LABEL: "elastane-here-group-7"}
    assert labels.items() <= member["labels"].items()
    assert member["annotations"].items() >= {COUNT_NOTE: "4", RETRIABLE_NOTE: "false"}.items()
    other = make_metadata(pool)
    assert other["labels"][CLASS_LABEL] == "low"
    assert GROUP_LABEL not in other["labels"]
    assert COUNT_NOTE not in other["annotations"]
    plain = make_metadata(KubernetesPool(queue="team-a", workload_priority_class="high"))
    assert plain["labels"][CLASS_LABEL] == "high"


def test_without_a_queue_a_gang_leaves_no_trace():
    metadata = make_metadata(KubernetesPool(workload_priority_class="high"), gang=GANG)
    assert not [name for name in (*metadata["labels"], *metadata["annotations"]) if "kueue" in name]


def test_a_template_may_name_the_queue_but_no_group():
    group = {GROUP_LABEL: "mine", QUEUE_LABEL: "team-b", CLASS_LABEL: "mine"}
    options = make_template(labels=group, annotations={COUNT_NOTE: "9", "kueue.x-k8s.io/role-hash": "x"})
    other = make_metadata(KubernetesPool(), options=options)
    assert (other["labels"][QUEUE_LABEL], other["labels"][CLASS_LABEL]) == ("team-b", "mine")
    assert GROUP_LABEL not in other["labels"]
    assert not [name for name in other["annotations"] if "kueue" in name]
    member = make_metadata(KubernetesPool(), options=options, gang=GANG)
    assert member["labels"][GROUP_LABEL] == "elastane-here-group-7"
    assert member["annotations"][COUNT_NOTE] == "4"


@pytest.mark.parametrize(
    ("engine", "pool", "options", "queue"),
    [
        (KUBERNETES, {}, {}, ""),
        (KUBERNETES, {"queue": "a"}, {}, "a"),
        (KUBERNETES, {}, make_template(labels={QUEUE_LABEL: "b"}), "b"),
        (KUBERNETES, {"queue": "a"}, make_template(labels={QUEUE_LABEL: "b"}), "a"),
        (KUBERNETES, {}, make_template(labels={QUEUE_LABEL: 3}), ""),
        (KUBERNETES, {}, make_template(labels=[]), ""),
        (KUBERNETES, {}, {TEMPLATE: "{"}, ""),
        (SLURM, {"queue": "a"}, {}, ""),
    ],
)
def test_the_queue_is_that_of_the_pool_or_of_the_template(engine, pool, options, queue):
    assert find_queue(engine, pool, options) == queue


def make_workload(name="w", owners=(), **conditions: tuple[str, str, str]) -> bytes:
    listed = [
        {"type": kind, "status": status, "reason": reason, "message": message}
        for kind, (status, reason, message) in conditions.items()
    ]
    references = [{"uid": uid, "kind": "Pod"} for uid in owners]
    metadata = {"name": name, "ownerReferences": references}
    return json.dumps({"metadata": metadata, "spec": {}, "status": {"conditions": listed}}).encode()


@pytest.mark.parametrize(
    ("conditions", "words"),
    [
        ({}, ""),
        (
            {"QuotaReserved": ("False", "Pending", "insufficient unused quota,\n1 more needed")},
            "no quota (Pending): insufficient unused quota,",
        ),
        (
            {"QuotaReserved": ("False", "Inadmissible", "LocalQueue team-z doesn't exist")},
            "no quota (Inadmissible): LocalQueue team-z doesn't exist",
        ),
        (
            {"QuotaReserved": ("True", "", ""), "Admitted": ("False", "NoChecks", "")},
            "its quota is reserved, but Kueue has not admitted it (NoChecks)",
        ),
        ({"Finished": ("True", "Succeeded", "")}, "Kueue calls its workload finished (Succeeded)"),
        ({"QuotaReserved": ("False", "x" * 999, "y" * 99_999)}, "no quota (xxx"),
    ],
)
def test_the_words_of_a_workload_say_what_its_pods_wait_for(conditions, words):
    workload = decode_workload(make_workload(**conditions))
    assert workload is not None
    assert words in workload.why
    assert bool(workload.why) == bool(words)
    assert len(workload.why) < 600
    assert "\n" not in workload.why


@pytest.mark.parametrize(
    "document",
    [
        b"",
        b"[]",
        b'{"metadata": {}}',
        b'{"metadata": {"name": 3}}',
        b'{"metadata": {"name": "w"}, "status": 1}',
    ],
)
def test_a_workload_that_cannot_be_read_costs_only_its_own_words(document):
    assert decode_workload(document) is None


def test_a_pod_finds_the_workload_of_its_group_or_its_own():
    quota = {"QuotaReserved": ("False", "Pending", "wait")}
    workloads = [decode_workload(make_workload("g", **quota)), decode_workload(make_workload("w", ["u2"]))]
    found = explain_waiting(workloads, [("u1", "g"), ("u2", ""), ("u3", ""), ("u4", "none")])
    assert found["u1"] == "no quota (Pending): wait"
    assert found["u2"] == ""
    assert found["u3"] == "Kueue has made no workload for it yet"
    assert "pods of its group are missing" in found["u4"]


def make_pod(phase="Pending", *, deleted=None, node="", gates=(), conditions=()):
    metadata = {
        "name": "elastane-here-1",
        "uid": "u",
        "labels": {CLUSTER_LABEL: "here", AGENT_LABEL: "here-1", QUEUE_LABEL: "team-a", GROUP_LABEL: "g"},
        "finalizers": ["kueue.x-k8s.io/managed"],
    }
    if deleted is not None:
        metadata |= {"deletionTimestamp": "2026-11-30T08:00:00Z", "deletionGracePeriodSeconds": deleted}
    spec = {"schedulingGates": [{"name": name} for name in gates]} | ({"nodeName": node} if node else {})
    document = {
        "metadata": metadata,
        "spec": spec,
        "status": {"phase": phase, "conditions": list(conditions)},
    }
    pod = decode_agent_pod(json.dumps(document).encode(), "here")
    assert pod is not None
    return pod


def test_a_pod_that_kueue_has_not_admitted_waits_in_its_queue_with_its_words():
    pod = make_pod(gates=["kueue.x-k8s.io/admission"])
    assert (pod.group, pod.is_queued) == ("g", True)
    assert describe_pod(pod).why == "it waits in queue team-a of Kueue"
    assert describe_pod(pod, "no quota").why == "it waits in queue team-a of Kueue: no quota"
    scheduled = {"type": "PodScheduled", "status": "False", "reason": "SchedulingGated"}
    other = make_pod(gates=["team/own"], conditions=[scheduled])
    assert describe_pod(other, "no quota").why == "its queue has not admitted it (SchedulingGated)"


@pytest.mark.parametrize(
    ("pod", "state", "is_replaceable"),
    [
        # Only the finalizer keeps them: none of them has a process.
        (make_pod(deleted=0, gates=["kueue.x-k8s.io/admission"]), "gone", True),
        (make_pod("Failed", deleted=0, node="n1"), "gone", True),
        (make_pod("Failed", node="n1"), "gone", True),
        # Kueue counts it until its node says that it has ended.
        (make_pod("Running", deleted=0, node="n1"), "gone", False),
        (make_pod("Running", deleted=30, node="n1"), "leaving", False),
        (make_pod("Succeeded", node="n1"), "gone", False),
    ],
)
def test_a_finalizer_holds_no_devices_and_only_failed_pods_are_replaced(pod, state, is_replaceable):
    seen = describe_pod(pod)
    assert (seen.state, seen.is_replaceable) == (state, is_replaceable)


def test_a_preemption_by_kueue_is_named():
    stop = {
        "type": "TerminationTarget",
        "status": "True",
        "reason": "WorkloadEvictedDueToPreempted",
        "message": "Preempted to accommodate a workload",
    }
    words = "Kueue ends it (WorkloadEvictedDueToPreempted): Preempted to accommodate a workload"
    assert describe_pod(make_pod("Running", deleted=30, node="n1", conditions=[stop])).why == words
    assert describe_pod(make_pod("Failed", deleted=0, node="n1", conditions=[stop])).why == words
