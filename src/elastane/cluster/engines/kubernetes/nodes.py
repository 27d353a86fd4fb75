"""The nodes that the API server shows, and how many of their devices agents may use. Pure."""

from collections import Counter
from collections.abc import Iterable, Mapping

import msgspec

from elastane.cluster.engines.kubernetes.manifest import AGENT_LABEL, CLUSTER_LABEL
from elastane.cluster.engines.kubernetes.options import CPU, MEMORY, KubernetesPool, Toleration
from elastane.cluster.engines.kubernetes.pods import Metadata
from elastane.cluster.engines.kubernetes.quantities import MILLI, parse_quantity
from elastane.cluster.nouns.agents import SeenNode, belongs_to
from elastane.common.untrusted_data import Decoder, Malformed

REPELLING = ("NoSchedule", "NoExecute")
"""Effects of taints that keep pods off a node."""


class _Taint(msgspec.Struct, frozen=True):
    key: str
    effect: str
    value: str | None = None


class _NodeSpec(msgspec.Struct, frozen=True):
    unschedulable: bool | None = None
    taints: list[_Taint] | None = None


class _Condition(msgspec.Struct, frozen=True):
    type: str
    status: str


class _NodeStatus(msgspec.Struct, frozen=True):
    allocatable: dict[str, str] | None = None
    conditions: list[_Condition] | None = None


class _Node(msgspec.Struct, frozen=True):
    metadata: Metadata
    spec: _NodeSpec = _NodeSpec()
    status: _NodeStatus = _NodeStatus()


class _Resources(msgspec.Struct, frozen=True):
    requests: dict[str, str] | None = None


class _Container(msgspec.Struct, frozen=True, rename="camel"):
    resources: _Resources | None = None
    restart_policy: str | None = None


class _PodSpec(msgspec.Struct, frozen=True, rename="camel"):
    node_name: str | None = None
    containers: list[_Container] | None = None
    init_containers: list[_Container] | None = None
    overhead: dict[str, str] | None = None


class _PodStatus(msgspec.Struct, frozen=True):
    phase: str = ""


class _Pod(msgspec.Struct, frozen=True):
    metadata: Metadata
    spec: _PodSpec
    status: _PodStatus = _PodStatus()


class ListedNode(msgspec.Struct, frozen=True, kw_only=True):
    """A node.

    Args:
        is_usable: it is ready, and not cordoned.
        taints: that keep pods off it.
        allocatable: what pods may request there in all, in thousandths.
    """

    name: str
    is_usable: bool
    labels: Mapping[str, str]
    taints: tuple[_Taint, ...]
    allocatable: Mapping[str, int]


class PodRequests(msgspec.Struct, frozen=True, kw_only=True):
    """What a pod of any owner holds on its node.

    Args:
        cluster: of the agent that it belongs to; empty: it belongs to no agent.
        requests: in thousandths.
    """

    node: str
    namespace: str
    cluster: str
    requests: Mapping[str, int]


_decode_whole: Decoder[_Node] = Decoder(_Node)
_decode_pod: Decoder[_Pod] = Decoder(_Pod)


def decode_node(document: bytes) -> ListedNode | None:
    """Return a node; None: it cannot be read."""
    try:
        node = _decode_whole(document)
    except Malformed:
        return None
    conditions = {condition.type: condition.status for condition in node.status.conditions or ()}
    taints = tuple(taint for taint in node.spec.taints or () if taint.effect in REPELLING)
    return ListedNode(
        name=node.metadata.name,
        is_usable=conditions.get("Ready") == "True" and not node.spec.unschedulable,
        labels=node.metadata.labels or {},
        taints=taints,
        allocatable=_parse_quantities(node.status.allocatable),
    )


def decode_requests(document: bytes) -> PodRequests | None:
    """Return what a pod holds; None: nothing, or it cannot be read."""
    try:
        pod = _decode_pod(document)
    except Malformed:
        return None
    if not pod.spec.node_name or pod.status.phase in ("Succeeded", "Failed"):
        return None
    labels = pod.metadata.labels or {}
    cluster = labels.get(CLUSTER_LABEL, "")
    return PodRequests(
        node=pod.spec.node_name,
        namespace=pod.metadata.namespace,
        cluster=cluster if belongs_to(labels.get(AGENT_LABEL, ""), cluster) else "",
        requests=_sum_requests(pod.spec),
    )


def _sum_requests(spec: _PodSpec) -> Mapping[str, int]:
    """Return what a pod holds: its containers together, or one that runs before them if it needs more."""
    together = Counter[str]()
    for container in spec.containers or ():
        together.update(_get_requests(container))
    before: list[Mapping[str, int]] = []
    for container in spec.init_containers or ():
        if container.restart_policy == "Always":
            # It goes on beside those that begin later.
            together.update(_get_requests(container))
        else:
            before.append(_get_requests(container))
    found = Counter(together)
    for requests in before:
        found |= Counter(requests)
    found.update(_parse_quantities(spec.overhead))
    return dict(found)


def _get_requests(container: _Container) -> Mapping[str, int]:
    return _parse_quantities(container.resources.requests if container.resources is not None else None)


def _parse_quantities(texts: Mapping[str, str] | None) -> dict[str, int]:
    found = {}
    for name, text in (texts or {}).items():
        try:
            found[name] = parse_quantity(text)
        except ValueError:
            # It costs only this resource.
            continue
    return found


def list_nodes_of_pool(
    name: str,
    pool: KubernetesPool,
    listed_nodes: Iterable[ListedNode],
    requests_of_pods: Iterable[PodRequests],
    cluster: str,
    namespace: str,
) -> tuple[SeenNode, ...]:
    """Return the nodes of a pool with the devices that the cluster may use; those without are left out.

    Args:
        requests_of_pods: of all pods.
        cluster: of the agents; empty: all pods are of others.
        namespace: of the agents of the cluster.
    """
    others: dict[str, Counter[str]] = {}
    for pod in requests_of_pods:
        is_own = pod.cluster and pod.cluster == cluster and pod.namespace == namespace
        if not is_own:
            others.setdefault(pod.node, Counter()).update(pod.requests)
    found = {
        node.name: count_unheld_devices(node, pool, others.get(node.name, {}))
        for node in listed_nodes
        if _is_in_pool(node, pool)
    }
    return tuple(
        SeenNode(name=node, pool=name, devices=devices) for node, devices in sorted(found.items()) if devices
    )


def count_unheld_devices(node: ListedNode, pool: KubernetesPool, held: Mapping[str, int]) -> int:
    """Return how many devices agents could hold with all that comes with each, beside others."""
    each = {} if pool.resource == CPU else {pool.resource: MILLI}
    if pool.cpus_per_device:
        each[CPU] = pool.cpus_per_device * MILLI
    if pool.memory_bytes_per_device:
        each[MEMORY] = pool.memory_bytes_per_device * MILLI
    left = ((node.allocatable.get(name, 0) - held.get(name, 0)) // need for name, need in each.items())
    return max(0, min(left))


def _is_in_pool(node: ListedNode, pool: KubernetesPool) -> bool:
    return (
        node.is_usable
        and all(node.labels.get(label) == value for label, value in pool.node_selector.items())
        and all(any(_tolerates(one, taint) for one in pool.tolerations) for taint in node.taints)
    )


def _tolerates(toleration: Toleration, taint: _Taint) -> bool:
    return (
        toleration.key == taint.key
        and toleration.effect in ("", taint.effect)
        and (toleration.operator == "Exists" or toleration.value == (taint.value or ""))
    )
