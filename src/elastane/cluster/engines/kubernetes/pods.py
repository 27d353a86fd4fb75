"""The pods that the API server shows, and what they say about agents. Pure."""

import re
from datetime import datetime

import msgspec

from elastane.cluster.engines.kubernetes.kueue import GATE, GROUP_LABEL, QUEUE_LABEL
from elastane.cluster.engines.kubernetes.manifest import AGENT_LABEL, CLUSTER_LABEL, CONTAINER
from elastane.cluster.nouns.agents import AgentId, AgentState, SeenAgent, belongs_to
from elastane.common.safe_text import escape_line, fold_text
from elastane.common.untrusted_data import Decoder, Malformed

LONGEST_WHY = 500
SIGNAL_BASE = 128
"""A process that a signal has ended has this exit code plus the number of the signal."""
LAST_SIGNAL = 64
NOT_FOUND, NOT_EXECUTABLE = 127, 126
FORCE_AFTER_S = 15.0
"""How long after the grace of a deletion a node may take to say that a pod has ended."""
_NODE = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,252}")

WAITING = {
    "ImagePullBackOff": "its image cannot be pulled",
    "ErrImagePull": "its image cannot be pulled",
    "ErrImageNeverPull": "its image is not on the node",
    "InvalidImageName": "the name of its image is not valid",
    "CreateContainerConfigError": "its container cannot be set up",
    "CreateContainerError": "its container cannot be created",
    "RunContainerError": "its container cannot be started",
    "ContainerCreating": "its node prepares its container",
    "PodInitializing": "its node prepares its container",
}
"""Reasons of containers that wait."""
UNSCHEDULED = {
    "Unschedulable": "no node has room for it",
    "SchedulingGated": "its queue has not admitted it",
    "SchedulerError": "the scheduler of Kubernetes failed",
}
"""Reasons of pods without a node."""
ENDED = {
    "Evicted": "its node evicted it",
    "DeadlineExceeded": "its time limit ended it",
    "NodeLost": "its node was lost",
    "NodeShutdown": "its node was shut down",
    "Shutdown": "its node was shut down",
    "Terminated": "its node was shut down",
    "Preempting": "a pod of higher priority took its place",
    "UnexpectedAdmissionError": "its node did not admit it",
    "OutOfcpu": "its node had too few processors left",
    "OutOfmemory": "its node had too little memory left",
    "OutOfpods": "its node had too many pods",
}
"""Reasons of pods that have ended."""
DISRUPTED = {
    "PreemptionByScheduler": "a pod of higher priority takes its place",
    "DeletionByTaintManager": "its node has a taint that it does not tolerate",
    "EvictionByEvictionAPI": "it is evicted",
    "DeletionByPodGC": "its node is gone",
    "TerminationByKubelet": "its node ends it",
}
"""Reasons of the condition ``DisruptionTarget``."""


class Metadata(msgspec.Struct, frozen=True, rename="camel"):
    """The metadata of an object that the engine reads; a field that is missing is empty."""

    name: str = ""
    namespace: str = ""
    uid: str = ""
    resource_version: str = ""
    labels: dict[str, str] | None = None


class _Head(msgspec.Struct, frozen=True):
    metadata: Metadata
    spec: msgspec.Raw = msgspec.Raw(b"{}")
    status: msgspec.Raw = msgspec.Raw(b"{}")


class _Deletion(msgspec.Struct, frozen=True, rename="camel"):
    deletion_timestamp: datetime | None = None
    deletion_grace_period_seconds: int | None = None


class _Deleted(msgspec.Struct, frozen=True):
    metadata: _Deletion


class _Spec(msgspec.Struct, frozen=True, rename="camel"):
    node_name: str | None = None
    active_deadline_seconds: int | None = None
    scheduling_gates: "list[_Gate] | None" = None


class _Gate(msgspec.Struct, frozen=True):
    name: str = ""


class _Waiting(msgspec.Struct, frozen=True):
    reason: str | None = None
    message: str | None = None


class _Terminated(msgspec.Struct, frozen=True, rename="camel"):
    exit_code: int
    signal: int | None = None
    reason: str | None = None
    message: str | None = None
    finished_at: datetime | None = None


class _ContainerState(msgspec.Struct, frozen=True):
    waiting: _Waiting | None = None
    terminated: _Terminated | None = None


class _Container(msgspec.Struct, frozen=True):
    name: str
    state: _ContainerState = _ContainerState()


class _Condition(msgspec.Struct, frozen=True, rename="camel"):
    type: str
    status: str = ""
    reason: str | None = None
    message: str | None = None
    last_transition_time: datetime | None = None


class _Status(msgspec.Struct, frozen=True, rename="camel"):
    phase: str = ""
    reason: str | None = None
    message: str | None = None
    start_time: datetime | None = None
    conditions: list[_Condition] | None = None
    container_statuses: list[_Container] | None = None


class AgentPod(msgspec.Struct, frozen=True, kw_only=True):
    """The pod of an agent, as the API server shows it.

    Args:
        deletes_by_s: its deletion has been asked for, and its grace ends then, in seconds since 1970; None:
            it has not.
        is_kept: it is deleted but for finalizers of others, such as Kueue's: it has no grace left.
        node: empty: none yet.
        queue: of Kueue; empty: it has none.
        group: its group there; empty: it is a workload of its own.
        is_queued: Kueue has not admitted it.
        until_s: when Kubernetes will end it; None: unknown, or never.
        status: None: it cannot be read.
        is_deleted: the API server has removed it since.
    """

    name: str
    uid: str
    agent: AgentId
    deletes_by_s: float | None = None
    is_kept: bool = False
    node: str = ""
    queue: str = ""
    group: str = ""
    is_queued: bool = False
    until_s: float | None = None
    status: _Status | None = None
    is_deleted: bool = False

    @property
    def state(self) -> AgentState:
        """The state of its agent; running if it cannot be read, because it may hold devices."""
        # Only a finalizer keeps one without grace, and no process: it had no node, or was removed by force.
        if self.is_deleted or self.is_kept or self._has_ended:
            return "gone"
        if self.deletes_by_s is not None:
            return "leaving"
        return "pending" if self.status is not None and self.status.phase == "Pending" else "running"

    @property
    def is_replaceable(self) -> bool:
        """Whether Kueue takes another pod into its group in its place.

        It does not while the pod is on a node and has not failed there, as one that is removed by force.
        Nor if it has succeeded.
        """
        has_failed = self.status is not None and self.status.phase == "Failed"
        return self.state == "gone" and (self.is_deleted or has_failed or not self.node)

    @property
    def ended(self) -> _Terminated | None:
        """How its agent has ended; None: it has not, or its end was not seen."""
        return None if self._container is None else self._container.state.terminated

    @property
    def _has_ended(self) -> bool:
        # A pod with a container of others beside the agent goes on without it.
        return self.status is not None and (
            self.status.phase in ("Succeeded", "Failed") or self.ended is not None
        )

    @property
    def _container(self) -> _Container | None:
        found = [] if self.status is None else self.status.container_statuses or []
        return next((container for container in found if container.name == CONTAINER), None)

    def find_condition(self, kind: str) -> _Condition | None:
        """Return the condition of a type; None: it has none."""
        found = [] if self.status is None else self.status.conditions or []
        return next((condition for condition in found if condition.type == kind), None)

    @property
    def waiting(self) -> _Waiting | None:
        """Why its container waits; None: it does not."""
        return None if self._container is None else self._container.state.waiting


_decode_head: Decoder[_Head] = Decoder(_Head)
_decode_deleted: Decoder[_Deleted] = Decoder(_Deleted)
_decode_spec: Decoder[_Spec] = Decoder(_Spec)
_decode_status: Decoder[_Status] = Decoder(_Status)


def decode_agent_pod(document: bytes, cluster: str) -> AgentPod | None:
    """Return the pod of an agent of a cluster; None: it belongs to none of them, or cannot be read.

    A pod with a state that cannot be read still counts, because its agent may run.
    """
    try:
        head = _decode_head(document)
    except Malformed:
        return None
    labels = head.metadata.labels or {}
    agent = labels.get(AGENT_LABEL, "")
    if labels.get(CLUSTER_LABEL) != cluster or not belongs_to(agent, cluster):
        return None
    pod = AgentPod(name=head.metadata.name, uid=head.metadata.uid, agent=agent)
    try:
        deletion = _decode_deleted(document).metadata
        spec, status = _decode_spec(bytes(head.spec)), _decode_status(bytes(head.status))
    except Malformed:
        return pod
    started_s = _read_time(status.start_time)
    limit_s = spec.active_deadline_seconds
    return msgspec.structs.replace(
        pod,
        deletes_by_s=_read_time(deletion.deletion_timestamp),
        is_kept=deletion.deletion_timestamp is not None and deletion.deletion_grace_period_seconds == 0,
        node=spec.node_name if spec.node_name and _NODE.fullmatch(spec.node_name) else "",
        queue=labels.get(QUEUE_LABEL, ""),
        group=labels.get(GROUP_LABEL, ""),
        is_queued=any(gate.name == GATE for gate in spec.scheduling_gates or ()),
        until_s=started_s + limit_s if started_s is not None and limit_s is not None else None,
        status=status,
    )


def describe_pod(pod: AgentPod, words: str = "") -> SeenAgent:
    """Return what a pod, or Kueue if it has not admitted it, says about its agent."""
    state, ended = pod.state, pod.ended
    code = None if ended is None or _find_signal(ended) else ended.exit_code
    return SeenAgent(
        id=pod.agent,
        state=state,
        node=pod.node,
        why=_explain(pod, words),
        exit_code=code if state == "gone" else None,
        ended_s=find_end_s(pod) if state == "gone" else None,
        until_s=pod.until_s if state == "running" else None,
        is_replaceable=bool(pod.group) and pod.is_replaceable,
    )


def find_end_s(pod: AgentPod) -> float | None:
    """Return when the agent of a pod that is gone ended, in seconds since 1970; None: unknown."""
    if pod.ended is not None and (ended_s := _read_time(pod.ended.finished_at)) is not None:
        return ended_s
    ready = pod.find_condition("Ready")
    # One that was removed by force may still be called ready, since it began.
    return _read_time(ready.last_transition_time) if ready is not None and ready.status == "False" else None


def choose_grace_s(pod: AgentPod, grace_s: int, now_s: float) -> int | None:
    """Return the grace of a deletion, in whole seconds; None: nothing has to be asked for.

    Without grace the agent gets a second, so that the pod goes when its node says that it has ended. Only if
    no node says so it is removed by force: until then its devices count as held.
    """
    if pod.state == "gone":
        return None
    if pod.deletes_by_s is None:
        return max(1, grace_s)
    left_s = pod.deletes_by_s - now_s
    if grace_s > 0:
        # A grace can only be made shorter.
        return grace_s if grace_s < left_s else None
    if left_s > 1:
        return 1
    return 0 if left_s <= -FORCE_AFTER_S else None


def _explain(pod: AgentPod, words: str) -> str:
    status = pod.status
    if pod.state == "gone":
        return _explain_end(pod)
    if status is None:
        return "its pod cannot be read"
    disruption = pod.find_condition("DisruptionTarget")
    if disruption is not None and disruption.status == "True":
        return _join(_name(DISRUPTED, disruption.reason), disruption.message)
    if pod.state == "leaving":
        return _explain_stop(pod)
    if pod.state == "pending":
        return _explain_pending(pod, words)
    return (
        "" if status.phase == "Running" else f"Kubernetes calls its phase {escape_line(status.phase, 40)!r}"
    )


def _explain_stop(pod: AgentPod) -> str:
    """Return why Kueue ends a pod; empty: it does not."""
    stop = pod.find_condition("TerminationTarget")
    if stop is None or stop.status != "True":
        return ""
    return _join(f"Kueue ends it ({escape_line(stop.reason or 'no reason', 60)})", stop.message)


def _explain_pending(pod: AgentPod, words: str) -> str:
    if pod.is_queued:
        return _join(f"it waits in queue {escape_line(pod.queue, 63)} of Kueue", words)
    if (waiting := pod.waiting) is not None and waiting.reason:
        return _join(_name(WAITING, waiting.reason), waiting.message)
    scheduled = pod.find_condition("PodScheduled")
    if scheduled is not None and scheduled.status == "False":
        return _join(_name(UNSCHEDULED, scheduled.reason), scheduled.message)
    return "its node prepares it" if pod.node else "the scheduler of Kubernetes has not seen it"


def _explain_end(pod: AgentPod) -> str:
    status, ended = pod.status, pod.ended
    disruption = pod.find_condition("DisruptionTarget")
    cause = ""
    if status is not None and status.reason:
        cause = _join(_name(ENDED, status.reason), status.message)
    elif disruption is not None and disruption.status == "True":
        cause = _join(_name(DISRUPTED, disruption.reason), disruption.message)
    else:
        cause = _explain_stop(pod)
    if ended is None:
        was_removed = pod.is_deleted or pod.is_kept
        return cause or ("its pod was removed" if was_removed else "its pod ended without an exit code")
    if ended.reason == "OOMKilled":
        cause = "it used more memory than its pod has"
    if number := _find_signal(ended):
        return _join(cause or f"signal {number} ended it", ended.message)
    code = f"it ended with exit code {ended.exit_code}"
    if ended.exit_code in (NOT_FOUND, NOT_EXECUTABLE):
        code += ": the image could not start the command of Elastane"
    return _join(f"{cause}; {code}" if cause else code, ended.message if ended.exit_code else "")


def _find_signal(ended: _Terminated) -> int:
    """Return the signal that ended an agent; 0: none."""
    if ended.signal:
        return ended.signal
    number = ended.exit_code - SIGNAL_BASE
    return number if 0 < number <= LAST_SIGNAL else 0


def _name(known: dict[str, str], reason: str | None) -> str:
    """Return a reason in words, with the word of Kubernetes, for which people can search."""
    word = escape_line(reason or "no reason", 60)
    return f"{known[word]} ({word})" if word in known else f"Kubernetes gives the reason {word}"


def _join(why: str, message: str | None) -> str:
    text = fold_text((message or "").strip(), LONGEST_WHY)
    return f"{why}: {text}" if text else why


def _read_time(time: datetime | None) -> float | None:
    return None if time is None else time.timestamp()
