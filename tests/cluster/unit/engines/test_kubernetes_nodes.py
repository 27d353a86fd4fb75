"""Nodes of Kubernetes and the devices that agents may use, quantities, and the words of refusals."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from elastane.cluster.engines.kubernetes.manifest import AGENT_LABEL, CLUSTER_LABEL
from elastane.cluster.engines.kubernetes.nodes import decode_node, decode_requests, list_nodes_of_pool
from elastane.cluster.engines.kubernetes.options import KubernetesPool, Toleration
from elastane.cluster.engines.kubernetes.quantities import parse_quantity
from elastane.cluster.engines.kubernetes.refusals import ApiRefusal, decode_refusal, judge_creation

GPU = "nvidia.com/gpu"
POOL = KubernetesPool(resource=GPU)


def a_node(name="n1", ready="True", spec=None, labels=None, **allocatable):
    document = {
        "metadata": {"name": name, "labels": labels},
        "spec": spec or {},
        "status": {
            "allocatable": {"cpu": "8", "memory": "8Gi", GPU: "4"} | allocatable,
            "conditions": [{"type": "Ready", "status": ready}],
        },
    }
    return decode_node(json.dumps(document).encode())


def a_pod(requests, node="n1", phase="Running", namespace="training", agent="", **spec):
    labels = {CLUSTER_LABEL: agent.split("-")[0], AGENT_LABEL: agent} if agent else None
    document = {
        "metadata": {"name": "p", "namespace": namespace, "labels": labels},
        "spec": {"nodeName": node, "containers": [{"resources": {"requests": requests}}], **spec},
        "status": {"phase": phase},
    }
    return decode_requests(json.dumps(document).encode())


def count(pool, nodes, pods=()):
    found = list_nodes_of_pool("pool", pool, nodes, [p for p in pods if p is not None], "here", "training")
    return {node.name: node.devices for node in found}


def test_devices_of_others_and_what_comes_with_a_device_count():
    node = a_node()
    assert count(POOL, [node]) == {"n1": 4}
    assert count(KubernetesPool(resource=GPU, cpus_per_device=3), [node]) == {"n1": 2}
    assert count(KubernetesPool(resource=GPU, memory_bytes_per_device=3 << 30), [node]) == {"n1": 2}
    assert count(KubernetesPool(cpus_per_device=1), [node], [a_pod({"cpu": "1500m"})]) == {"n1": 6}
    assert count(POOL, [node], [a_pod({GPU: "1"}), a_pod({GPU: "2"})]) == {"n1": 1}
    assert count(POOL, [node], [a_pod({GPU: "9"})]) == {}
    assert count(POOL, [node], [a_pod({GPU: "1"}, node="n2")]) == {"n1": 4}


def test_own_agents_hold_nothing_of_others_and_ended_pods_hold_nothing():
    own, other = a_pod({GPU: "2"}, agent="here-1"), a_pod({GPU: "1"}, agent="there-1")
    forged = a_pod({GPU: "1"}, agent="here-1", namespace="elsewhere")
    assert count(POOL, [a_node()], [own]) == {"n1": 4}
    assert count(POOL, [a_node()], [own, other, forged]) == {"n1": 2}
    assert a_pod({GPU: "1"}, phase="Succeeded") is None
    assert a_pod({GPU: "1"}, node=None) is None


def test_a_pod_holds_its_containers_together_or_the_largest_before_them():
    early = [{"resources": {"requests": {"cpu": "3"}}}, {"resources": None}]
    beside = [{"resources": {"requests": {"cpu": "1"}}, "restartPolicy": "Always"}]
    assert a_pod({"cpu": "2"}, initContainers=early).requests == {"cpu": 3000}
    assert a_pod({"cpu": "2"}, initContainers=beside, overhead={"cpu": "250m"}).requests == {"cpu": 3250}


@pytest.mark.parametrize(
    ("node", "pool", "usable"),
    [
        (a_node(ready="False"), POOL, False),
        (a_node(ready="Unknown"), POOL, False),
        (a_node(spec={"unschedulable": True}), POOL, False),
        (a_node(labels={"gpu": "a100"}), KubernetesPool(resource=GPU, node_selector={"gpu": "a100"}), True),
        (a_node(), KubernetesPool(resource=GPU, node_selector={"gpu": "a100"}), False),
        (a_node(spec={"taints": [{"key": "a", "effect": "PreferNoSchedule"}]}), POOL, True),
        (a_node(spec={"taints": [{"key": "a", "effect": "NoExecute"}]}), POOL, False),
    ],
)
def test_only_ready_nodes_of_the_pool_are_listed(node, pool, usable):
    assert bool(count(pool, [node])) is usable


@pytest.mark.parametrize(
    ("toleration", "tolerated"),
    [
        (Toleration(key="a", operator="Exists"), True),
        (Toleration(key="a", operator="Exists", effect="NoExecute"), False),
        (Toleration(key="a", operator="Equal", value="b", effect="NoSchedule"), True),
        (Toleration(key="a", operator="Equal", value="c"), False),
        (Toleration(key="b", operator="Exists"), False),
    ],
)
def test_a_taint_is_tolerated_by_key_value_and_effect(toleration, tolerated):
    node = a_node(spec={"taints": [{"key": "a", "value": "b", "effect": "NoSchedule"}]})
    assert bool(count(KubernetesPool(resource=GPU, tolerations=(toleration,)), [node])) is tolerated


def test_an_unreadable_object_costs_only_itself():
    for document in (b"", b"{}", b"[]", b'{"metadata": {}, "spec": 1}'):
        assert decode_requests(document) is None
    for document in (b"", b"{}", b"[]", b'{"metadata": {}, "spec": 1}'):
        assert decode_node(document) is None
    assert count(POOL, [a_node(cpu="many")]) == {"n1": 4}


@pytest.mark.parametrize(
    ("text", "thousandths"),
    [
        ("2", 2000),
        ("500m", 500),
        ("0.5", 500),
        ("1.5Gi", 1_610_612_736_000),
        ("1k", 1_000_000),
        ("2Ki", 2_048_000),
        ("1e3", 1_000_000),
        ("1n", 1),
        ("-1", -1000),
        ("12E", 12 * 10**21),
    ],
)
def test_a_quantity_is_read_in_thousandths(text, thousandths):
    assert parse_quantity(text) == thousandths


@given(st.text())
def test_a_text_is_a_quantity_or_refused(text):
    try:
        found = parse_quantity(text)
    except ValueError:
        found = 0
    assert isinstance(found, int)


@pytest.mark.parametrize(
    ("refusal", "for_ever", "words"),
    [
        (ApiRefusal(403, "Forbidden", 'pods "a" is forbidden: exceeded quota: team'), False, "quota"),
        (ApiRefusal(403, "Forbidden", "violates PodSecurity"), True, "forbids it: violates PodSecurity"),
        (ApiRefusal(403, "Forbidden", 'User "a" cannot create resource "pods"'), True, "forbids it: User"),
        (ApiRefusal(403, "Forbidden", "because it is being terminated"), False, "forbids it"),
        (ApiRefusal(404, "NotFound", 'namespaces "a" not found'), True, "refuses it"),
        (ApiRefusal(422, "Invalid", "spec: Invalid value"), True, "refuses it: spec"),
        (ApiRefusal(409, "Conflict", "cannot be fulfilled on resourcequotas"), False, "cannot start it now"),
        (ApiRefusal(401), False, "does not know the credentials"),
        (ApiRefusal(429), False, "cannot start it now: the API server answers 429"),
        (ApiRefusal(500, "InternalError", "webhook"), False, "webhook"),
    ],
)
def test_a_refusal_says_whether_it_is_for_ever(refusal, for_ever, words):
    judged = judge_creation(refusal)
    assert judged.for_ever is for_ever
    assert words in judged.why


def test_an_answer_that_is_no_status_is_a_refusal_too():
    for content in (b"", b"<html>bad gateway</html>", b"[]", b"x" * 200_000, b'{"message": 3}'):
        assert decode_refusal(502, content) == ApiRefusal(502)
    status = decode_refusal(0, b'{"code": 410, "reason": "Expired", "message": "a\\nb\\u0007"}')
    assert (status.code, status.reason, status.words) == (410, "Expired", "a b\\x07")
