"""The admission of a job: the checks of its spec, and of changes of its size. Pure."""

import re
from collections.abc import Container, Iterable
from pathlib import PurePosixPath

import msgspec

from elastane.cluster.nouns.config import DeclaredEngine, Team
from elastane.cluster.nouns.images import can_run_image
from elastane.cluster.nouns.job_checks import check_job_spec
from elastane.cluster.nouns.jobs import ElasticPolicy, JobSpec
from elastane.common.field_checks import MOST_WORKERS, check_name, make_field_error

LARGEST_SPEC_BYTES = 256 * 2**10
"""Limit of a spec as JSON. Every list of jobs reads it, and every process of the job gets its variables."""
VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def check_spec(spec: JobSpec) -> None:
    """Check everything in a spec that does not depend on the cluster: the one full check of the controller.

    Args:
        spec: as submitted, or as it would be after a change.

    Raises:
        BadField: the first field that is wrong.
    """
    check_job_spec(spec)
    _check_size(spec)
    if spec.queue:
        check_name("queue", spec.queue)
    if not spec.code:
        _check_absolute(spec)
    _check_most_workers(spec.elastic_policy)
    for name in spec.env:
        if not VARIABLE.fullmatch(name):
            raise make_field_error(
                f"env.{name}", "is not a valid name of a variable", "write letters, digits and '_'"
            )


def _check_absolute(spec: JobSpec) -> None:
    """Check the paths of a job that brings no code with it."""
    if spec.working_dir and not PurePosixPath(spec.working_dir).is_absolute():
        raise make_field_error(
            "workingDir", f"{spec.working_dir!r} is not an absolute path", "write the absolute path"
        )
    if spec.script and not PurePosixPath(spec.working_dir, spec.script).is_absolute():
        raise make_field_error(
            "script",
            f"{spec.script!r} is not an absolute path",
            "write the absolute path, or a workingDir that contains it",
            means="the controller does not know your working directory",
        )


def check_priority_class(spec: JobSpec, priorities: Container[str]) -> None:
    """Check that the priority class of a spec is among the existing ones."""
    if spec.priority_class and spec.priority_class not in priorities:
        raise make_field_error(
            "priorityClass",
            f"there is no class {spec.priority_class!r}",
            "write one that `elastane priority list` shows, or leave it out",
        )


def check_residency(spec: JobSpec, teams: Iterable[Team]) -> None:
    """Check that the places that a job names for its data are among those of its team."""
    allowed = next((team.sites for team in teams if team.name == spec.team), ())
    for field, named in (("data.sites", spec.data.sites), ("data.regions", spec.data.regions)):
        foreign = [site for site in named if site not in allowed]
        if allowed and foreign:
            raise make_field_error(
                field,
                f"{foreign[0]} is not among the sites of team {spec.team}: {', '.join(allowed)}",
                "remove it, or have an operator change the sites of the team",
                means="the data of the team must not leave its sites; the job was not accepted",
            )


def check_image(spec: JobSpec, engines: Iterable[DeclaredEngine]) -> None:
    """Check that some engine could run the image of a job."""
    if any(can_run_image(spec.image, engine) for engine in (None, *engines)):
        return
    raise make_field_error(
        "image",
        f"no engine of the cluster can run {spec.image}",
        "leave it out; or have an operator declare an engine of kind kubernetes, or of kind slurm with the "
        "option container (pyxis takes .sqsh files, and kubernetes takes no files)",
        means="the machine of the controller and Ray run no images; the job was not submitted",
    )


def check_virtual_ranks(spec: JobSpec, virtual_ranks: int) -> None:
    """Check that every process of a run would compute at least one virtual rank.

    Args:
        spec: as it would be after a change.
        virtual_ranks: the number that the run has fixed; 0: the run has not begun.

    Raises:
        BadField: the policy allows more workers than virtual ranks.
    """
    policy, processes = spec.elastic_policy, spec.processes
    _, most = policy.limits
    if 0 < virtual_ranks < most * processes:
        allow = f" allow with {processes} processes for each" if processes > 1 else ""
        field = "replicaDiscreteValues" if policy.replica_discrete_values else "maxReplicas"
        raise make_field_error(
            f"elasticPolicy.{field}",
            f"{most} is more than the {virtual_ranks} virtual ranks of its run{allow}",
            f"write {virtual_ranks // processes} or fewer; for more, submit a job with training.virtualRanks",
            means="a process computes at least one, and their number is fixed once a run has begun",
        )


def _check_size(spec: JobSpec) -> None:
    """Check the length of a spec. The error names its longest field."""
    if (total_bytes := len(msgspec.json.encode(spec))) <= LARGEST_SPEC_BYTES:
        return
    lengths = {name: len(msgspec.json.encode(value)) for name, value in msgspec.to_builtins(spec).items()}
    field = max(lengths, key=lengths.__getitem__)
    raise make_field_error(
        field,
        f"has {lengths[field]} of {total_bytes} bytes; a job may have {LARGEST_SPEC_BYTES}",
        "put long values into a file, and pass the name of the file",
        means="every list of jobs reads the spec, and every process of the job gets its variables",
    )


def _check_most_workers(policy: ElasticPolicy) -> None:
    """Check the largest size of a policy, given as a range or as a list."""
    _, most = policy.limits
    if most > MOST_WORKERS:
        field = "replicaDiscreteValues" if policy.replica_discrete_values else "maxReplicas"
        raise make_field_error(
            f"elasticPolicy.{field}", f"{most} is more than {MOST_WORKERS}", "write a smaller number"
        )


def scale_policy(
    policy: ElasticPolicy,
    *,
    min_replicas: int | None = None,
    max_replicas: int | None = None,
    replica_discrete_values: tuple[int, ...] | None = None,
) -> ElasticPolicy:
    """Return the policy with other limits; None: as before. The caller checks the result.

    If the policy lists its sizes, sizes outside of the limits leave the list, and its ends become the limits.

    Raises:
        BadField: the list has no sizes for these limits.
    """
    values = policy.replica_discrete_values if replica_discrete_values is None else replica_discrete_values
    low, high = (min(values), max(values)) if values else policy.limits
    least = low if min_replicas is None else min_replicas
    most = high if max_replicas is None else max_replicas
    if not values:
        return msgspec.structs.replace(
            policy, min_replicas=least, max_replicas=most, replica_discrete_values=()
        )
    within = tuple(value for value in values if least <= value <= most)
    if not within or least < low or most > high:
        lacks = "has no size" if low <= least and most <= high else "does not reach"
        raise make_field_error(
            "elasticPolicy.replicaDiscreteValues",
            f"{list(values)} {lacks} from {least} to {most}",
            f"write limits from {low} to {high}, or list all sizes that the job may have from now on",
            means="the job has one of the listed sizes, and limits choose among them",
        )
    # Sizes are listed or come in steps, never both.
    return msgspec.structs.replace(
        policy,
        min_replicas=min(within),
        max_replicas=max(within),
        replica_increment_step=None,
        replica_discrete_values=within,
    )
