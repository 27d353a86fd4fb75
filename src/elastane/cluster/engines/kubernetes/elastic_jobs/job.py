"""The spec of the job that an `ElasticJob` describes, and what its agents get from the template. Pure."""

import math
from collections.abc import Iterable, Mapping
from typing import Any, Literal

import msgspec

from elastane.cluster.engines.kubernetes.elastic_jobs.resource import ElasticJob
from elastane.cluster.engines.kubernetes.kueue import QUEUE_LABEL
from elastane.cluster.engines.kubernetes.options import CPU
from elastane.cluster.engines.kubernetes.pod_template import LARGEST_TEMPLATE_BYTES, OWNER, TEMPLATE
from elastane.cluster.engines.kubernetes.quantities import MILLI, parse_quantity
from elastane.cluster.nouns.jobs import (
    DataPlacement,
    ElasticPolicy,
    JobSpec,
    JobTraining,
    RunPolicy,
    WorkerResources,
)
from elastane.cluster.nouns.pools import ENGINE_LABEL, Pool
from elastane.common.document_parser import parse_document
from elastane.common.field_checks import make_field_error
from elastane.common.untrusted_data import Decoder, Malformed

FIRST = "template.spec.containers[0]"
LONGEST_SUFFIX = 8


class _Spec(msgspec.Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    elastic_policy: ElasticPolicy = ElasticPolicy()
    run_policy: RunPolicy = RunPolicy()
    training: JobTraining = JobTraining()
    contract: Literal["elastane", "torchrun"] = "elastane"
    nproc_per_node: int = 1
    processes: int = 1
    priority_class_name: str = ""
    replicas: int | None = None
    template: dict[str, Any]


class _Resources(msgspec.Struct, frozen=True):
    limits: dict[str, str | int | float] | None = None
    requests: dict[str, str | int | float] | None = None


class _Container(msgspec.Struct, frozen=True, rename="camel"):
    command: tuple[str, ...] = ()
    args: tuple[str, ...] | None = None
    working_dir: str | None = None
    resources: _Resources | None = None


class _PodSpec(msgspec.Struct, frozen=True):
    containers: tuple[_Container, ...] = ()


class _Template(msgspec.Struct, frozen=True):
    spec: _PodSpec = _PodSpec()


class _Document(msgspec.Struct, frozen=True):
    template: _Template = _Template()


class DescribedJob(msgspec.Struct, frozen=True):
    """The job that a resource describes, and what its agents get of it: the options of an `AgentAsk`."""

    spec: JobSpec
    options: Mapping[str, str]


_decode: Decoder[dict[str, Any]] = Decoder(dict[str, Any])


def propose_names(resource: ElasticJob) -> tuple[str, str]:
    """Return the names that its job may have: its own, or one with a part of its UID if that is taken."""
    return resource.name, f"{resource.name}-{resource.uid[:LONGEST_SUFFIX]}"


def describe_job(
    resource: ElasticJob, name: str, *, team: str, engine: str, pools: Iterable[Pool]
) -> DescribedJob:
    """Return the job of a resource under a name. The controller checks its spec like that of any job."""
    try:
        document = _decode(resource.spec)
    except Malformed as error:
        raise make_field_error("spec", f"cannot be read: {error}", "correct it") from None
    spec: _Spec = parse_document(document, _Spec, "spec")
    found: _Document = parse_document({"template": spec.template}, _Document, "spec")
    if not found.template.spec.containers or not found.template.spec.containers[0].command:
        raise make_field_error(
            f"{FIRST}.command", "is missing", "write the program of a worker: [python, /shared/train.py]"
        )
    container = found.template.spec.containers[0]
    resource_name, devices = _count_devices(container.resources or _Resources())
    return DescribedJob(
        JobSpec(
            name=name,
            team=team,
            command=(*container.command, *(container.args or ())),
            contract=spec.contract,
            nproc_per_node=spec.nproc_per_node,
            processes=spec.processes,
            working_dir=container.working_dir or "",
            queue=resource.labels.get(QUEUE_LABEL, ""),
            priority_class=spec.priority_class_name,
            resources_per_worker=WorkerResources(
                devices=devices, kinds=_find_kinds(resource_name, engine, pools)
            ),
            elastic_policy=_limit_policy(spec.elastic_policy, spec.replicas),
            run_policy=msgspec.structs.replace(
                spec.run_policy, suspend=spec.run_policy.suspend or spec.replicas == 0
            ),
            training=spec.training,
            data=DataPlacement(labels={ENGINE_LABEL: engine}),
        ),
        _build_options(resource, spec.template),
    )


def change_described_job(before: JobSpec, wanted: JobSpec) -> JobSpec:
    """Return the spec after a change of its resource."""
    kept = {
        f"{FIRST}.command": (before.command, wanted.command),
        f"{FIRST}.workingDir": (before.working_dir, wanted.working_dir),
        f"{FIRST}.resources": (before.worker_devices, wanted.worker_devices),
        "contract": (before.contract, wanted.contract),
        "nprocPerNode": (before.nproc_per_node, wanted.nproc_per_node),
        "processes": (before.processes, wanted.processes),
        "training": (before.training, wanted.training),
    }
    for field, (old, new) in kept.items():
        if old != new:
            raise make_field_error(
                field,
                "cannot be changed",
                "write its former value, or make another ElasticJob",
                means="the run that has begun depends on it",
            )
    return msgspec.structs.replace(
        before,
        queue=wanted.queue,
        priority_class=wanted.priority_class,
        elastic_policy=wanted.elastic_policy,
        run_policy=wanted.run_policy,
    )


def _limit_policy(policy: ElasticPolicy, replicas: int | None) -> ElasticPolicy:
    """Return a policy without the sizes above the wish; 0 and None: all stay."""
    if not replicas:
        return policy
    low, high = policy.limits
    if not low <= replicas <= high:
        raise make_field_error(
            "replicas", f"{replicas} is not from {low} to {high}", "write 0 or a size that elasticPolicy has"
        )
    if not policy.replica_discrete_values:
        return msgspec.structs.replace(policy, max_replicas=replicas)
    values = tuple(value for value in policy.replica_discrete_values if value <= replicas)
    if replicas not in values:
        raise make_field_error(
            "replicas",
            f"{replicas} is not one of {list(policy.replica_discrete_values)}",
            "write one of replicaDiscreteValues, or 0",
        )
    return msgspec.structs.replace(
        policy, min_replicas=values[0], max_replicas=values[-1], replica_discrete_values=values
    )


def _count_devices(resources: _Resources) -> tuple[str, int | None]:
    """Return the resource that is a device, and how many of it a worker has; None: it names no number."""
    asked = {**(resources.requests or {}), **(resources.limits or {})}
    extended = [name for name in asked if "/" in name]
    if len(extended) > 1:
        raise make_field_error(
            f"{FIRST}.resources", f"has {' and '.join(map(repr, extended))}", "write one kind of device"
        )
    name = extended[0] if extended else CPU
    if name not in asked:
        return name, None
    try:
        quantity = parse_quantity(str(asked[name]))
    except ValueError as error:
        raise make_field_error(f"{FIRST}.resources", str(error), "write a whole number") from None
    if quantity <= 0:
        raise make_field_error(f"{FIRST}.resources", f"has no {name}", "write 1 or more")
    return name, math.ceil(quantity / MILLI)


def _find_kinds(resource: str, engine: str, pools: Iterable[Pool]) -> tuple[str, ...]:
    """Return the kinds of devices that an engine has as a resource."""
    kinds = {pool.device for pool in pools if pool.options.get("resource", CPU) == resource}
    if not kinds:
        raise make_field_error(
            f"{FIRST}.resources",
            f"no pool of engine {engine} has devices {resource}",
            "ask for another resource, or have an operator add a pool (elastane pool set)",
        )
    return tuple(sorted(kinds))


def _build_options(resource: ElasticJob, template: dict[str, Any]) -> dict[str, str]:
    encoded = msgspec.json.encode(template).decode()
    if len(encoded) > LARGEST_TEMPLATE_BYTES:
        raise make_field_error(
            "template",
            f"has {len(encoded)} bytes",
            f"write {LARGEST_TEMPLATE_BYTES} at most, and put long values into a ConfigMap",
        )
    owner = {"name": resource.name, "uid": resource.uid}
    return {TEMPLATE: encoded, OWNER: msgspec.json.encode(owner).decode()}
