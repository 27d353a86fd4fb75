"""A double of the part of Kueue that plain pods and their groups meet.

It is written after Kueue's pages "Run Plain Pods" and "Troubleshooting Pods", its proposal 976, and the
source of its controller of pods. **It was not compared with a real Kueue.** There is one flavor, one device
is the only resource, and each local queue has a quota of its own.
"""

import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

from elastane.cluster.engines.kubernetes.quantities import MILLI
from tests.cluster.engines.api_double.cluster import DEVICE, NAMESPACE, SmallCluster
from tests.cluster.engines.api_double.nodes import list_requests
from tests.cluster.engines.api_double.objects import ApiError, Document, format_time, now

GROUP = "kueue.x-k8s.io"
GATE, FINALIZER, MANAGED = f"{GROUP}/admission", f"{GROUP}/managed", f"{GROUP}/managed"
QUEUE, CLASS = f"{GROUP}/queue-name", f"{GROUP}/priority-class"
GROUP_NAME, COUNT = f"{GROUP}/pod-group-name", f"{GROUP}/pod-group-total-count"
RETRIABLE = f"{GROUP}/retriable-in-group"
WAIT_S = 0.5


class KueueDouble:
    """Admits workloads, the highest priority and then the oldest first, and preempts the lowest.

    Args:
        quotas: devices of each local queue.
    """

    def __init__(self, cluster: SmallCluster, quotas: dict[str, int]) -> None:
        self.objects = cluster.objects
        self.api = cluster.api
        self.quotas = dict(quotas)
        self._closing = False
        for name in quotas:
            self.objects.create("localqueues", NAMESPACE, {"metadata": {"name": name}})
        self.api.hidden_groups.discard(GROUP)
        self.api.webhook = admit_pod
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def close(self) -> None:
        self._closing = True
        with self.objects.changed:
            self.objects.changed.notify_all()
        self._thread.join()
        self.api.webhook = lambda pod: None
        self.api.hidden_groups.add(GROUP)
        self.forget_all()

    def set_quota(self, queue: str, devices: int) -> None:
        with self.objects.changed:
            self.quotas[queue] = devices
            self._reconcile()
            self.objects.changed.notify_all()

    def add_class(self, name: str, value: int) -> None:
        self.objects.create("workloadpriorityclasses", "", {"metadata": {"name": name}, "value": value})

    def count_used(self, queue: str) -> int:
        """Return the devices of the quota of a queue that workloads hold."""
        with self.objects.changed:
            return self._count_used(queue)

    def find_workload(self, name: str) -> Document | None:
        return self.objects.find("workloads", NAMESPACE, name)

    def forget_all(self) -> None:
        """Let all pods go at once, as the deletion of their workloads does."""
        with self.objects.changed:
            for pod in self.objects.list_all("pods"):
                self._finalize(pod)
            for workload in self.objects.list_all("workloads"):
                self.objects.delete("workloads", NAMESPACE, workload["metadata"]["name"], {})

    # -- the loop --------------------------------------------------------------------------------------------

    def _run(self) -> None:
        while not self._closing:
            with self.objects.changed:
                version = self.objects.version
                self._reconcile()
                if self.objects.version == version and not self._closing:
                    self.objects.changed.wait(WAIT_S)

    def _reconcile(self) -> None:
        pods = [pod for pod in self.objects.list_all("pods") if MANAGED in pod["metadata"].get("labels", {})]
        groups: dict[str, list[Document]] = {}
        for pod in pods:
            if name := pod["metadata"]["labels"].get(GROUP_NAME):
                groups.setdefault(name, []).append(pod)
            else:
                with suppress(ApiError):
                    self._look_at_pod(pod)
        for name, members in groups.items():
            with suppress(ApiError):
                self._look_at_group(name, members)
        self._end_evicted()
        for queue in {**self.quotas, **{one["spec"]["queueName"]: 0 for one in self._list_workloads()}}:
            self._admit(queue)

    # -- pods ------------------------------------------------------------------------------------------------

    def _look_at_pod(self, pod: Document) -> None:
        name = name_workload(pod)
        if is_over(pod) or pod["metadata"].get("deletionTimestamp"):
            if is_over(pod):
                self._set(name, "Finished", "True", "Succeeded", "")
            self._finalize(pod)
        elif self.find_workload(name) is None:
            self._create(name, [pod], 1)
        elif self._holds_quota(name):
            self._ungate(pod)

    def _look_at_group(self, name: str, members: list[Document]) -> None:
        count = int(members[0]["metadata"]["annotations"][COUNT])
        active, inactive = (
            [pod for pod in members if is_active(pod)],
            [pod for pod in members if not is_active(pod)],
        )
        # Those with a gate, and the newest ones, are too many first.
        active.sort(key=lambda pod: (is_gated(pod), pod["metadata"]["creationTimestamp"], read_version(pod)))
        if self.find_workload(name) is None:
            for pod in inactive:
                self._finalize(pod)
            counts = {pod["metadata"]["annotations"][COUNT] for pod in active}
            if len(active) >= count and len(counts) == 1:
                self._create(name, active[:count], count)
                self._remove(active[count:])
            return
        self._own(name, members)
        self._remove(active[count:])
        replaced = len(inactive) + len(active[:count]) - count
        for pod in sorted(inactive, key=read_version)[: max(0, min(replaced, len(inactive)))]:
            self._finalize(pod)
        succeeded = [pod for pod in active if pod["status"].get("phase") == "Succeeded"]
        retries = all(pod["metadata"]["annotations"].get(RETRIABLE) != "false" for pod in members)
        if len(succeeded) == count or (not retries and all(map(is_over, members))):
            self._set(name, "Finished", "True", "Succeeded", f"Pods succeeded: {len(succeeded)}/{count}.")
            for pod in members:
                self._finalize(pod)
            return
        self._reclaim(name, len(succeeded))
        if self._holds_quota(name):
            for pod in active[:count]:
                self._ungate(pod)

    def _remove(self, pods: list[Document]) -> None:
        for pod in pods:
            self._finalize(pod)
            if not pod["metadata"].get("deletionTimestamp"):
                self.objects.delete("pods", NAMESPACE, pod["metadata"]["name"], {})

    def _finalize(self, pod: Document) -> None:
        kept = [one for one in pod["metadata"].get("finalizers", ()) if one != FINALIZER]
        if kept != pod["metadata"].get("finalizers", []):
            self._patch("pods", pod["metadata"]["name"], {"metadata": {"finalizers": kept}})

    def _ungate(self, pod: Document) -> None:
        if is_gated(pod) and not pod["metadata"].get("deletionTimestamp"):
            self._patch("pods", pod["metadata"]["name"], {"spec": {"schedulingGates": None}})

    # -- workloads -------------------------------------------------------------------------------------------

    def _create(self, name: str, pods: list[Document], count: int) -> None:
        labels = pods[0]["metadata"]["labels"]
        priority = 0
        if CLASS in labels:
            found = self.objects.find("workloadpriorityclasses", "", labels[CLASS])
            if found is None:
                return
            priority = found["value"]
        devices = list_requests(pods[0]).get(DEVICE, 0) // MILLI
        workload = {
            "metadata": {"name": name},
            "spec": {
                "queueName": labels[QUEUE],
                "priority": priority,
                "podSets": [{"name": "main", "count": count, "devices": devices}],
            },
            "status": {},
        }
        self.objects.create("workloads", NAMESPACE, workload)
        self._own(name, pods)

    def _own(self, name: str, pods: list[Document]) -> None:
        workload = self.find_workload(name)
        owners = workload["metadata"].get("ownerReferences", [])
        there = {owner["uid"] for owner in owners}
        new = [
            {
                "apiVersion": "v1",
                "kind": "Pod",
                "name": pod["metadata"]["name"],
                "uid": pod["metadata"]["uid"],
            }
            for pod in pods
            if pod["metadata"]["uid"] not in there
        ]
        if new:
            self._patch("workloads", name, {"metadata": {"ownerReferences": [*owners, *new]}})

    def _reclaim(self, name: str, count: int) -> None:
        workload = self.find_workload(name)
        reclaimed = [{"name": "main", "count": count}] if count else []
        if workload["status"].get("reclaimablePods", []) != reclaimed:
            self._patch("workloads", name, {"status": {"reclaimablePods": reclaimed}})

    def _end_evicted(self) -> None:
        """Free the quota of evicted workloads of which no pod runs any more."""
        for workload in self._list_workloads():
            if has(workload, "Evicted") and has(workload, "QuotaReserved"):
                pods = self._list_pods(workload)
                if not any(pod["status"].get("phase") == "Running" for pod in pods):
                    name = workload["metadata"]["name"]
                    self._set(name, "QuotaReserved", "False", "Pending", "The workload was evicted")

    def _admit(self, queue: str) -> None:
        waiting = [
            one
            for one in self._list_workloads(queue)
            if not has(one, "QuotaReserved") and not has(one, "Finished") and self._list_pods(one)
        ]
        waiting.sort(key=lambda one: (-one["spec"]["priority"], read_version(one, "creation")))
        for workload in waiting:
            name = workload["metadata"]["name"]
            if queue not in self.quotas:
                message = f"LocalQueue {queue} doesn't exist"
                self._set(name, "QuotaReserved", "False", "Inadmissible", message)
                continue
            missing = self._count_used(queue) + count_devices(workload) - self.quotas[queue]
            if missing <= 0:
                message = f"Quota reserved in ClusterQueue {queue}"
                self._set(name, "Evicted", "False", "QuotaReserved", message)
                self._set(name, "QuotaReserved", "True", "QuotaReserved", message)
                self._set(name, "Admitted", "True", "Admitted", "The workload is admitted")
                continue
            message = (
                "couldn't assign flavors to pod set main: insufficient unused quota for "
                f"{DEVICE} in flavor default, {missing} more needed"
            )
            self._set(name, "QuotaReserved", "False", "Pending", message)
            self._preempt(queue, workload, missing)

    def _preempt(self, queue: str, workload: Document, missing: int) -> None:
        holding = [one for one in self._list_workloads(queue) if has(one, "QuotaReserved")]
        leaving = [one for one in holding if has(one, "Evicted")]
        missing -= sum(map(count_devices, leaving))
        lower = [one for one in holding if one["spec"]["priority"] < workload["spec"]["priority"]]
        lower = [one for one in lower if one not in leaving and not has(one, "Finished")]
        lower.sort(key=lambda one: (one["spec"]["priority"], -read_version(one, "creation")))
        victims = []
        while missing > 0 and lower:
            victims.append(lower.pop(0))
            missing -= count_devices(victims[-1])
        if missing > 0:
            return
        for victim in victims:
            name = workload["metadata"]["name"]
            self._evict(victim, f"Preempted to accommodate a workload ({name}) due to prioritization")

    def _evict(self, workload: Document, message: str) -> None:
        self._set(workload["metadata"]["name"], "Evicted", "True", "Preempted", message)
        for pod in self._list_pods(workload):
            if is_gated(pod) or is_over(pod) or pod["metadata"].get("deletionTimestamp"):
                continue
            stop = {"type": "TerminationTarget", "status": "True", "reason": "WorkloadEvictedDueToPreempted"}
            conditions = [*pod["status"].get("conditions", ()), stop | {"message": message}]
            name = pod["metadata"]["name"]
            self._patch("pods", name, {"status": {"conditions": conditions}})
            self.objects.delete("pods", NAMESPACE, name, {})

    def _list_workloads(self, queue: str = "") -> list[Document]:
        found = self.objects.list_all("workloads", NAMESPACE)
        return [one for one in found if not queue or one["spec"]["queueName"] == queue]

    def _list_pods(self, workload: Document) -> list[Document]:
        uids = {owner["uid"] for owner in workload["metadata"].get("ownerReferences", ())}
        pods = self.objects.list_all("pods", NAMESPACE)
        return [pod for pod in pods if pod["metadata"]["uid"] in uids]

    def _count_used(self, queue: str) -> int:
        holding = (one for one in self._list_workloads(queue) if has(one, "QuotaReserved"))
        return sum(count_devices(one) for one in holding if not has(one, "Finished"))

    def _holds_quota(self, name: str) -> bool:
        workload = self.find_workload(name)
        return has(workload, "Admitted") and has(workload, "QuotaReserved") and not has(workload, "Evicted")

    def _set(self, name: str, kind: str, status: str, reason: str, message: str) -> None:
        workload = self.find_workload(name)
        if workload is None:
            return
        conditions = workload["status"].get("conditions", [])
        new = {"type": kind, "status": status, "reason": reason, "message": message}
        old = next((one for one in conditions if one["type"] == kind), {})
        if {**old, "lastTransitionTime": ""} == {**new, "lastTransitionTime": ""}:
            return
        if not old and status == "False" and kind != "QuotaReserved":
            return
        new["lastTransitionTime"] = format_time(now())
        others = [one for one in conditions if one["type"] != kind]
        self._patch("workloads", name, {"status": {"conditions": [*others, new]}})

    def _patch(self, resource: str, name: str, patch: Document) -> None:
        with suppress(ApiError):
            self.objects.patch(resource, NAMESPACE, name, patch)


def admit_pod(pod: Document) -> None:
    """Do what the webhook of Kueue does with a new pod."""
    metadata: dict[str, Any] = pod["metadata"]
    labels, notes = metadata.get("labels", {}), metadata.get("annotations", {})
    if (GROUP_NAME in labels) != (COUNT in notes) or not notes.get(COUNT, "1").isdecimal():
        message = f"metadata: both the '{COUNT}' annotation and the '{GROUP_NAME}' label should be set"
        raise ApiError(403, "Forbidden", f'admission webhook "vpod.kb.io" denied the request: {message}')
    if labels.get(QUEUE):
        metadata["finalizers"] = [*metadata.get("finalizers", ()), FINALIZER]
        metadata["labels"] = labels | {MANAGED: "true"}
        pod["spec"]["schedulingGates"] = [{"name": GATE}]


def name_workload(pod: Document) -> str:
    return f"pod-{pod['metadata']['name']}-{pod['metadata']['uid'][:5]}"


def count_devices(workload: Document) -> int:
    (pods,) = workload["spec"]["podSets"]
    reclaimed = sum(one["count"] for one in workload["status"].get("reclaimablePods", ()))
    return (pods["count"] - reclaimed) * pods["devices"]


def has(workload: Document, kind: str) -> bool:
    conditions = workload["status"].get("conditions", ())
    return any(one["type"] == kind and one["status"] == "True" for one in conditions)


def is_gated(pod: Document) -> bool:
    return any(gate["name"] == GATE for gate in pod["spec"].get("schedulingGates") or ())


def is_over(pod: Document) -> bool:
    return pod["status"].get("phase") in ("Succeeded", "Failed")


def is_active(pod: Document) -> bool:
    """Return whether a pod runs, may run, or has succeeded."""
    if pod["metadata"].get("deletionTimestamp") and not pod["spec"].get("nodeName"):
        return False
    return pod["status"].get("phase") != "Failed"


_order: dict[str, int] = {}


def read_version(document: Document, kind: str = "") -> int:
    """Return the order in which objects were first seen; their times are cut to seconds."""
    return _order.setdefault(document["metadata"]["uid"] + kind, len(_order))


@contextmanager
def run_kueue(cluster: SmallCluster, quotas: dict[str, int]) -> Iterator[KueueDouble]:
    """Install Kueue in a cluster with local queues, until the context ends."""
    kueue = KueueDouble(cluster, quotas)
    try:
        yield kueue
    finally:
        kueue.close()
        for name in quotas:
            cluster.objects.delete("localqueues", NAMESPACE, name, {})
        for one in cluster.objects.list_all("workloadpriorityclasses"):
            cluster.objects.delete("workloadpriorityclasses", "", one["metadata"]["name"], {})
