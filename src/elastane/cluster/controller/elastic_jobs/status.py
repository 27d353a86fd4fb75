"""The status of an `ElasticJob`: how its job does, in the words of Kubernetes. Pure."""

import math
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

import msgspec

from elastane.cluster.controller.elastic_jobs.stored_resource import StoredElasticJob
from elastane.cluster.controller.jobs.explanation import explain_size
from elastane.cluster.controller.jobs.stored_job import StoredJob
from elastane.cluster.engines.kubernetes.elastic_jobs.resource import ElasticJob, ResourceCondition
from elastane.cluster.engines.kubernetes.pod_template import JOB_LABEL
from elastane.common.safe_text import fold_text

LONGEST_MESSAGE = 1000
LONGEST_REASON = 120
PROGRESS = ("step", "progressPercentage", "estimatedRemainingSeconds")
"""Fields that change all the time."""
PROGRESS_S = 5.0
"""How often a status is written of which only these have changed."""
AGAIN_S = 10.0
"""After this time a status that was written, and is not seen, is written again."""
_END_REASONS = {"finished": "Finished", "failed": "Failed", "cancelled": "Cancelled"}


class WrittenStatus(msgspec.Struct, frozen=True):
    """The status that was written last, and when, in seconds since 1970."""

    status: Mapping[str, Any]
    written_s: float


def build_resource_status(
    resource: ElasticJob, kept: StoredElasticJob | None, job: StoredJob | None, refusal: str, now_s: float
) -> dict[str, Any]:
    """Return the status of a resource.

    Args:
        kept: None: no job was made of it.
        refusal: why its spec was not accepted, as a sentence; empty: it was, or it has not been looked at.
    """
    before = resource.conditions
    found = _list_conditions(job, refusal)
    status: dict[str, Any] = {
        "observedGeneration": resource.generation if refusal or kept is None else kept.generation,
        "selector": f"{JOB_LABEL}={resource.name}",
        "replicas": 0,
        "reason": fold_text(refusal, LONGEST_REASON),
    }
    if job is not None:
        status |= _describe_job(job)
        status["reason"] = fold_text(refusal or _explain(job, most=1), LONGEST_REASON)
    status["conditions"] = [
        msgspec.to_builtins(_keep_time(before.get(condition.type), condition, now_s)) for condition in found
    ]
    return status


def must_write(
    resource: ElasticJob, wanted: Mapping[str, Any], last: WrittenStatus | None, now_s: float
) -> bool:
    """Return whether a status has to be written now; None: the controller has written none yet."""
    if wanted == resource.status:
        return False
    if last is None:
        return True
    if now_s - last.written_s < PROGRESS_S:
        return _drop_progress(wanted) != _drop_progress(last.status)
    return wanted != last.status or now_s - last.written_s >= AGAIN_S


def build_merge_patch(before: Mapping[str, Any], wanted: Mapping[str, Any]) -> dict[str, Any]:
    """Return the patch that makes a status the wanted one: fields that it has lost are removed."""
    return dict.fromkeys(before.keys() - wanted.keys()) | dict(wanted)


def _describe_job(job: StoredJob) -> dict[str, Any]:
    held = job.observed.held.values()
    training = max(0, sum(part.workers - part.absent for part in held))
    found: dict[str, Any] = {
        "job": job.name,
        "replicas": 0 if job.has_ended else training,
        "elasticScalingStatus": {"targetReplicas": job.workers},
        "step": job.step,
    }
    if job.observed.steps:
        found["progressPercentage"] = min(100, 100 * job.step // job.observed.steps)
    remaining, speed = job.observed.remaining, job.observed.samples_per_s
    if job.state == "running" and remaining is not None and speed > 0:
        found["estimatedRemainingSeconds"] = math.ceil(remaining / speed)
    return found


def _list_conditions(job: StoredJob | None, refusal: str) -> list[ResourceCondition]:
    conditions = []
    if refusal:
        conditions.append(_make("Accepted", is_true=False, reason="Refused", message=refusal))
    elif job is not None:
        conditions.append(_make("Accepted", is_true=True, reason="Submitted"))
    if job is None:
        return conditions
    words = _explain(job)
    end = _END_REASONS.get(job.state, "")
    is_whole = 0 < job.workers == sum(part.workers - part.absent for part in job.observed.held.values())
    is_paused = job.state == "paused"
    return [
        *conditions,
        _make("Suspended", is_true=is_paused, reason="Suspended" if is_paused else "NotSuspended"),
        _make(
            "Admitted",
            is_true=bool(job.workers) and not end,
            reason=end or ("Admitted" if job.workers else "Waiting"),
            message="" if end else words,
        ),
        _make(
            "PodsReady", is_true=is_whole and not end, reason=end or ("AllTrain" if is_whole else "Waiting")
        ),
        _make(
            "Complete",
            is_true=job.state == "finished",
            reason=end or "Unfinished",
            message=words if job.state == "finished" else "",
        ),
        _make(
            "Failed",
            is_true=job.state in ("failed", "cancelled"),
            reason=end or "Unfinished",
            message=words if job.state in ("failed", "cancelled") else "",
        ),
    ]


def _make(kind: str, *, is_true: bool, reason: str, message: str = "") -> ResourceCondition:
    return ResourceCondition(
        type=kind,
        status="True" if is_true else "False",
        reason=reason,
        message=fold_text(message, LONGEST_MESSAGE),
    )


def _keep_time(
    before: ResourceCondition | None, condition: ResourceCondition, now_s: float
) -> ResourceCondition:
    """Return a condition with the time since which its status is what it is."""
    if before is not None and before.status == condition.status and before.last_transition_time:
        return msgspec.structs.replace(condition, last_transition_time=before.last_transition_time)
    time = datetime.fromtimestamp(now_s, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    return msgspec.structs.replace(condition, last_transition_time=time)


def _explain(job: StoredJob, most: int | None = None) -> str:
    return " ".join(explain_size(job).sentences[:most])


def _drop_progress(status: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in status.items() if name not in PROGRESS}
