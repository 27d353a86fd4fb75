"""Whether a job can be taken in: what its spec says by itself, and beside what the cluster has. Pure."""

import re
from collections.abc import Container

from elastane.api.errors import BadInput
from elastane.api.jobs import ElasticPolicy, JobSpec

NAME = r"^[a-z0-9]([a-z0-9._-]{0,61}[a-z0-9])?$"
"""Of everything that has a name; 63 characters, as in Kubernetes, and safe in paths, URLs and host names."""
PLAIN = "lower-case letters, digits, '.', '_' and '-', at most 63, the first and the last a letter or a digit"
VARIABLE = r"^[A-Za-z_][A-Za-z0-9_]*$"
MOST_WORKERS = 1_000_000


class BadField(BadInput):
    """A field of a request is wrong; ``field`` is where, as a JSON path."""

    def __init__(self, field: str, what: str, *, means: str = "", do: str = "") -> None:
        self.field = field
        super().__init__(what, means=means, do=do)


def check(spec: JobSpec, priorities: Container[str]) -> None:
    """Whether this job could ever be started.

    Args:
        spec: as submitted, or as it would be after a change.
        priorities: names of the priority classes that there are.

    Raises:
        BadField: the first thing that is wrong.
    """
    named("$.name", spec.name)
    named("$.team", spec.team)
    if spec.queue:
        named("$.queue", spec.queue)
    if bool(spec.script) == bool(spec.command):
        raise BadField(
            "$.script",
            "a job has a script or a command" + (", not both" if spec.script else ""),
            do="script: train.py, with args; or command: [python, -m, mine]",
        )
    for name in spec.env:
        if not re.match(VARIABLE, name):
            raise BadField(
                f"$.env[{name}]", f"{name!r} is no name of a variable", do="letters, digits and '_'"
            )
    if spec.priority_class and spec.priority_class not in priorities:
        raise BadField(
            "$.priorityClass",
            f"there is no priority class {spec.priority_class!r}",
            do="elastane priority list; or leave it out",
        )
    _at_least("$.resourcesPerWorker.devices", spec.resources_per_worker.devices, 1)
    _at_least("$.runPolicy.jobMaxRetryCount", spec.run_policy.job_max_retry_count, 0)
    _positive("$.runPolicy.activeDeadlineSeconds", spec.run_policy.active_deadline_seconds)
    _positive("$.runPolicy.ttlSecondsAfterFinished", spec.run_policy.ttl_seconds_after_finished)
    _positive("$.target.throughput", spec.target.throughput)
    _positive("$.budget", spec.budget)
    _sizes(spec.elastic_policy)


def named(field: str, name: str) -> None:
    """Whether something may be called this.

    Raises:
        BadField: no.
    """
    if not re.match(NAME, name) or name.endswith("\n"):
        raise BadField(field, f"{name!r} is not a name", do=f"use {PLAIN}")


def _sizes(policy: ElasticPolicy) -> None:
    where = "$.elasticPolicy"
    _at_least(f"{where}.minReplicas", policy.min_replicas, 1)
    _at_least(f"{where}.replicaIncrementStep", policy.replica_increment_step, 1)
    _at_least(f"{where}.maxReplicas", policy.max_replicas, policy.min_replicas, "minReplicas")
    if policy.max_replicas > MOST_WORKERS:
        raise BadField(f"{where}.maxReplicas", f"at most {MOST_WORKERS} workers", do="write a smaller number")
    values = policy.replica_discrete_values
    if values and (list(values) != sorted(set(values)) or values[0] < 1):
        raise BadField(
            f"{where}.replicaDiscreteValues",
            "sizes grow from left to right, from 1",
            do="such as [1, 2, 4, 8]",
        )
    if values and not any(policy.min_replicas <= value <= policy.max_replicas for value in values):
        raise BadField(
            f"{where}.replicaDiscreteValues",
            f"none of {list(values)} lies between minReplicas {policy.min_replicas}"
            f" and maxReplicas {policy.max_replicas}",
            means="the job could never start",
            do="add a size, or widen the limits",
        )
    _positive(f"{where}.gracefulShutdownTimeoutInSeconds", policy.graceful_shutdown_timeout_in_seconds)
    _positive(f"{where}.scalingTimeoutInSeconds", policy.scaling_timeout_in_seconds)
    _positive(f"{where}.faultyScaleDownTimeoutInSeconds", policy.faulty_scale_down_timeout_in_seconds)


def _at_least(field: str, value: int, least: int, called: str = "") -> None:
    if value < least:
        bound = f"{called} {least}" if called else str(least)
        raise BadField(field, f"{value} is less than {bound}", do=f"write {least} or more")


def _positive(field: str, value: float | None) -> None:
    if value is not None and not 0 < value < float("inf"):
        raise BadField(field, f"{value:g} is not a positive number", do="write one, or leave it out")
