"""The pod of an agent and its Secret, as they are created. Pure."""

import math
from typing import Any

import msgspec

from elastane.cluster.engines.kubernetes.kueue import QUEUE_LABEL, queue_pod
from elastane.cluster.engines.kubernetes.options import CPU, MEMORY, KubernetesOptions, KubernetesPool
from elastane.cluster.engines.kubernetes.pod_template import apply_template
from elastane.cluster.nouns.agents import AgentAsk, AgentId, check_ask
from elastane.cluster.nouns.images import parse_image
from elastane.common.errors import BadInput
from elastane.common.safe_text import escape_line
from elastane.common.untrusted_data import Malformed

PREFIX = "elastane-"
CLUSTER_LABEL, AGENT_LABEL = "elastane.dev/cluster", "elastane.dev/agent"
MANAGER_LABEL, MANAGER = "app.kubernetes.io/managed-by", "elastane"
JOB_NOTE = "elastane.dev/job"
CONTAINER = "agent"
TICKET_FOLDER, TICKET = "/run/elastane", "ticket"
JOIN = f'exec "$@" < {TICKET_FOLDER}/{TICKET}'
"""The shell becomes the agent, which therefore gets the signals of Kubernetes."""
OWN_HOME_FOLDER = "/var/lib/elastane"
LONGEST_NOTE = 200
MOST_SECONDS = 1 << 31


def name_pod(agent: AgentId) -> str:
    """Return the name of an agent's pod and of its Secret."""
    return f"{PREFIX}{agent}"


def build_labels(agent: AgentId) -> dict[str, str]:
    """Return the labels by which the objects of an agent are found again."""
    return {MANAGER_LABEL: MANAGER, CLUSTER_LABEL: agent.rpartition("-")[0], AGENT_LABEL: agent}


def build_secret(ask: AgentAsk, pod_uid: str) -> dict[str, Any]:
    """Return the Secret with the ticket of an agent; Kubernetes removes it with the pod."""
    name = name_pod(ask.id)
    owner = {"apiVersion": "v1", "kind": "Pod", "name": name, "uid": pod_uid}
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": name, "labels": build_labels(ask.id), "ownerReferences": [owner]},
        "immutable": True,
        "type": "Opaque",
        "stringData": {TICKET: f"{ask.ticket}\n"},
    }


def build_pod(
    ask: AgentAsk, pool: KubernetesPool, options: KubernetesOptions, now_s: float
) -> dict[str, Any]:
    """Return the pod of an agent, which begins once its Secret is there; `BadInput`: there can be none."""
    check_ask(ask)
    volumes, mounts = _build_volumes(ask.id, options)
    labels = build_labels(ask.id) | ({QUEUE_LABEL: pool.queue} if pool.queue else {})
    spec: dict[str, Any] = {
        # An agent that is gone is replaced under a new id.
        "restartPolicy": "Never",
        # How long the agent has after a notice of others, such as kubectl drain.
        "terminationGracePeriodSeconds": min(MOST_SECONDS, max(1, math.ceil(ask.grace_s))),
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "containers": [
            {
                "name": CONTAINER,
                "image": _name_image(ask.image) or pool.image or options.image,
                "command": ["/bin/sh", "-c", JOIN, "sh", *options.command, "join", "-"],
                "resources": build_resources(ask, pool),
                "volumeMounts": mounts,
                "securityContext": {"allowPrivilegeEscalation": False},
                "terminationMessagePolicy": "FallbackToLogsOnError",
            }
        ],
        "volumes": volumes,
    }
    if not options.shares_home:
        spec["containers"][0]["env"] = [{"name": "ELASTANE_HOME", "value": OWN_HOME_FOLDER}]
    spec |= _build_place(pool)
    if options.service_account:
        spec["serviceAccountName"] = options.service_account
    if options.image_pull_secret:
        spec["imagePullSecrets"] = [{"name": options.image_pull_secret}]
    if options.user is not None:
        user, group = options.user
        spec["securityContext"] = {"runAsUser": user} | ({} if group is None else {"runAsGroup": group})
    if ask.until_s is not None:
        # It counts from the start of the pod: one that begins late ends late.
        spec["activeDeadlineSeconds"] = _compute_limit_s(ask, now_s)
    notes = {JOB_NOTE: escape_line(ask.job, LONGEST_NOTE)}
    pod: dict[str, Any] = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name_pod(ask.id), "labels": labels, "annotations": notes},
        "spec": spec,
    }
    try:
        pod = queue_pod(apply_template(pod, ask.options), ask, pool)
    except Malformed as error:
        raise BadInput(f"the template of job {ask.job} cannot be used: {error}", do="correct it") from error
    if not pod["spec"]["containers"][0].get("image"):
        raise BadInput(
            "no image is set",
            do="set the option image of the engine or of the pool, or image in the job: one with elastane",
        )
    return pod


def _name_image(text: str) -> str:
    """Return the image of a job as Kubernetes names it; empty: the job has none."""
    name = parse_image(text).reference if text else ""
    if text and not name:
        raise BadInput(
            f"Kubernetes cannot run the image {text}",
            means="it is a file, and pods take images from registries only",
            do="name an image in a registry",
        )
    return name


def build_resources(ask: AgentAsk, pool: KubernetesPool) -> dict[str, dict[str, str]]:
    """Return the resources that the pod of an agent requests, and its limits.

    Processors have no limit: a pod that has reached it starts slowly, and looks dead meanwhile.
    """
    requests: dict[str, str] = {}
    limits: dict[str, str] = {}
    if pool.resource != CPU:
        requests[pool.resource] = limits[pool.resource] = str(ask.devices)
    if cpus := ask.cpus or ask.devices * pool.cpus_per_device:
        requests[CPU] = str(cpus)
    if memory_bytes := ask.memory_bytes or ask.devices * pool.memory_bytes_per_device:
        requests[MEMORY] = limits[MEMORY] = str(memory_bytes)
    return {"requests": requests} | ({"limits": limits} if limits else {})


def _compute_limit_s(ask: AgentAsk, now_s: float) -> int:
    assert ask.until_s is not None, "it has a limit"
    left_s = math.floor(ask.until_s - now_s - max(0.0, ask.grace_s))
    if left_s < 1:
        raise BadInput(
            f"agent {ask.id} must end within {max(0.0, ask.until_s - now_s):.0f} s",
            means="that is too soon for its notice",
        )
    return min(MOST_SECONDS, left_s)


def _build_volumes(
    agent: AgentId, options: KubernetesOptions
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Return the volumes of a pod, and where its container sees them."""
    volumes: list[dict[str, Any]] = [
        {"name": TICKET, "secret": {"secretName": name_pod(agent)}},
        # Data loaders of torch exchange batches there; a container has only 64 MB by default.
        {"name": "shm", "emptyDir": {"medium": "Memory"}},
    ]
    mounts: list[dict[str, Any]] = [
        {"name": TICKET, "mountPath": TICKET_FOLDER, "readOnly": True},
        {"name": "shm", "mountPath": "/dev/shm"},  # noqa: S108 - a mount of the pod
    ]
    if not options.shares_home:
        volumes.append({"name": "own-home", "emptyDir": {}})
        mounts.append({"name": "own-home", "mountPath": OWN_HOME_FOLDER})
    for number, claim in enumerate(dict.fromkeys(claim for claim, _ in options.volumes)):
        volumes.append({"name": f"volume-{number}", "persistentVolumeClaim": {"claimName": claim}})
        mounts += (
            {"name": f"volume-{number}", "mountPath": path}
            for other, path in options.volumes
            if other == claim
        )
    return volumes, mounts


def _build_place(pool: KubernetesPool) -> dict[str, Any]:
    """Return the part of a pod that says on which nodes it may run, and before which other pods."""
    place: dict[str, Any] = {}
    if pool.node_selector:
        place["nodeSelector"] = dict(pool.node_selector)
    if pool.tolerations:
        place["tolerations"] = [msgspec.to_builtins(toleration) for toleration in pool.tolerations]
    if pool.priority_class:
        place["priorityClassName"] = pool.priority_class
    if pool.runtime_class:
        place["runtimeClassName"] = pool.runtime_class
    return place
