"""Kueue: how pods ask one of its queues, and what its workloads say about pods that wait. Pure.

After Kueue's pages "Run Plain Pods", "Troubleshooting Pods" and "Workload Priority Class", and its proposal
976. What counts here:

- A group is admitted when all its pods are there: all or none. Each other pod is a workload of its own.
- A pod of a group that has failed, or was deleted before it had a node, may be replaced by one like it, with
  the same group and the same count. One that has succeeded may not: its quota is free. One more pod than the
  count is deleted, and so is a replacement that comes while the old pod is still on its node.
- Kueue keeps a pod by a finalizer until its group is finished or the pod is replaced. A group with the
  annotation `retriable-in-group: false` is finished, and its quota free, as soon as none of its pods runs any
  more. Without it, pods that failed would hold their quota until the workload is deleted by hand.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec

from elastane.cluster.engines.kubernetes.options import KubernetesPool
from elastane.cluster.engines.kubernetes.pod_template import read_template_labels
from elastane.cluster.nouns.agents import AgentAsk, AgentId
from elastane.common.safe_text import escape_line, fold_text
from elastane.common.untrusted_data import Decoder, Malformed

KUEUE = "kueue.x-k8s.io"
"""The group of its API, and the prefix of its names."""
GATE = f"{KUEUE}/admission"
"""The gate of pods that wait for their admission."""
QUEUE_LABEL, CLASS_LABEL = f"{KUEUE}/queue-name", f"{KUEUE}/priority-class"
GROUP_LABEL, COUNT_NOTE = f"{KUEUE}/pod-group-name", f"{KUEUE}/pod-group-total-count"
RETRIABLE_NOTE = f"{KUEUE}/retriable-in-group"
VERSIONS = ("v1beta2", "v1beta1")
"""Of its API, the preferred one first."""
NO_WORKLOAD = "Kueue has made no workload for it yet"
NO_GROUP = ", because pods of its group are missing or name a priority class that does not exist"
LONGEST_MESSAGE = 400
MOST_OWNERS = 10_000


def name_group(agent: AgentId, gang: int) -> str:
    """Return the name of the group of a gang, which its workload has too."""
    return f"elastane-{agent.rpartition('-')[0]}-group-{gang}"


def find_queue_of_pods(pool: Mapping[str, str], options: Mapping[str, str]) -> str:
    """Return the local queue of pods, by options of their pool and their job; empty: they have none."""
    queue = pool.get("queue") or read_template_labels(options).get(QUEUE_LABEL, "")
    return queue if isinstance(queue, str) else ""


def queue_pod(pod: dict[str, Any], ask: AgentAsk, pool: KubernetesPool) -> dict[str, Any]:
    """Return a pod with all that its queue must know; unchanged if it has none."""
    metadata = pod["metadata"]
    labels, notes = dict(metadata["labels"]), dict(metadata["annotations"])
    if not labels.get(QUEUE_LABEL):
        return pod
    priority = pool.workload_priority_class
    if ask.gang is not None:
        labels[GROUP_LABEL] = name_group(ask.id, ask.gang.number)
        notes |= {COUNT_NOTE: str(ask.gang.size), RETRIABLE_NOTE: "false"}
    else:
        # Kueue takes the pods of the lowest priority first.
        priority = pool.growth_priority_class or priority
    labels |= {CLASS_LABEL: priority} if priority else {}
    return pod | {"metadata": metadata | {"labels": labels, "annotations": notes}}


# -- workloads -----------------------------------------------------------------------------------------------


class Workload(msgspec.Struct, frozen=True):
    """What Kueue says about a group of pods, or about one pod.

    Args:
        owners: UIDs of the pods.
        why: a sentence about a workload that waits; empty: Kueue has said nothing.
    """

    name: str
    owners: tuple[str, ...] = ()
    why: str = ""


class _Owner(msgspec.Struct, frozen=True):
    uid: str = ""


class _Metadata(msgspec.Struct, frozen=True, rename="camel"):
    name: str
    owner_references: list[_Owner] | None = None


class _Condition(msgspec.Struct, frozen=True):
    type: str
    status: str = ""
    reason: str | None = None
    message: str | None = None


class _Status(msgspec.Struct, frozen=True):
    conditions: list[_Condition] | None = None


class _Workload(msgspec.Struct, frozen=True):
    metadata: _Metadata
    status: _Status = _Status()


_decode: Decoder[_Workload] = Decoder(_Workload)
WAITING = (
    ("Finished", "True", "Kueue calls its workload finished"),
    ("QuotaReserved", "False", "no quota"),
    ("Admitted", "False", "its quota is reserved, but Kueue has not admitted it"),
    ("Evicted", "True", "Kueue has evicted it"),
)
"""Conditions of workloads that wait, the one that says most first: type, status and words."""


def decode_workload(document: bytes) -> Workload | None:
    """Return a workload; None: it cannot be read, which costs only its own words."""
    try:
        found = _decode(document)
    except Malformed:
        return None
    owners = tuple(owner.uid for owner in (found.metadata.owner_references or ())[:MOST_OWNERS])
    return Workload(found.metadata.name, owners, _explain(found.status.conditions or ()))


def _explain(conditions: Sequence[_Condition]) -> str:
    there = {(condition.type, condition.status): condition for condition in conditions}
    for kind, status, words in WAITING:
        if (condition := there.get((kind, status))) is not None:
            reason = f" ({escape_line(condition.reason, 60)})" if condition.reason else ""
            message = fold_text((condition.message or "").strip(), LONGEST_MESSAGE)
            return f"{words}{reason}: {message}" if message else f"{words}{reason}"
    return ""


def explain_waiting(workloads: Iterable[Workload], pods: Iterable[tuple[str, str]]) -> dict[str, str]:
    """Return what Kueue says about pods that wait, by UID, given the UID and the group of each."""
    by_name: dict[str, Workload] = {}
    by_owner: dict[str, Workload] = {}
    for workload in workloads:
        by_name[workload.name] = workload
        by_owner |= dict.fromkeys(workload.owners, workload)
    found = {}
    for uid, group in pods:
        matching = by_name.get(group) if group else by_owner.get(uid)
        if matching is not None:
            found[uid] = matching.why
        else:
            found[uid] = f"{NO_WORKLOAD}{NO_GROUP}" if group else NO_WORKLOAD
    return found
