"""Checks of job specs."""

import os
import re
from pathlib import PurePosixPath

import msgspec

from elastane.cluster.nouns.images import parse_image
from elastane.cluster.nouns.jobs import ElasticPolicy, JobSpec
from elastane.common.document_parser import parse_document
from elastane.common.field_checks import (
    check_bounded_count,
    check_finite,
    check_minimum,
    check_name,
    check_positive,
    make_field_error,
)
from elastane.common.url_credentials import check_no_credentials
from elastane.run.nouns.checkpoint_policy import parse_checkpoint_policy
from elastane.run.nouns.membership import MOST_SITES, SITE_NAME
from elastane.run.nouns.process_count import POWER, REFUSED_SETTINGS, WHY_POWER, is_process_count

LARGEST_SEED = 2**63 - 1
LONGEST_TIMEOUT_S = 3600.0
"""The longest timeout of an elastic policy: how long a job may hold unused devices or those of others."""

FIRST_YEAR, LAST_YEAR = 1971, 9998
"""The range of years in times, so that a time is valid in every time zone."""

CODE_DIGEST = re.compile(r"[0-9a-f]{64}")


def parse_job_spec(document: object) -> JobSpec:
    """Parse a document into a spec; `check_job_spec` checks its values."""
    if isinstance(document, dict) and document.get("version", 1) != 1:
        raise make_field_error(
            "version", f"{document['version']!r} is unknown", "write 1, or upgrade elastane"
        )
    return parse_document(document, JobSpec, "job")


def make_job_document(spec: JobSpec) -> object:
    """Return the document from which `parse_job_spec` parses the same spec."""
    return msgspec.to_builtins(spec)


def check_job_spec(spec: JobSpec) -> JobSpec:
    """Check a spec and return it."""
    check_name("name", spec.name)
    check_name("team", spec.team)
    _check_program(spec)
    _check_code(spec)
    if spec.image:
        parse_image(spec.image)
    check_numbers(spec)
    return spec


def check_numbers(spec: JobSpec) -> None:
    """Check the values that plans calculate with: sizes, times and amounts."""
    check_bounded_count("resourcesPerWorker.devices", spec.resources_per_worker.devices, 1)
    _check_policy(spec.elastic_policy)
    _check_contract(spec)
    _check_training(spec)
    _check_processes(spec)
    _check_sites(spec)
    run = spec.run_policy
    check_minimum("runPolicy.jobMaxRetryCount", run.job_max_retry_count, 0)
    check_positive("runPolicy.activeDeadlineSeconds", run.active_deadline_seconds)
    check_minimum("runPolicy.ttlSecondsAfterFinished", run.ttl_seconds_after_finished, 0)
    check_positive("budget", spec.budget)
    check_positive("target.throughput", spec.target.throughput)
    check_finite("target.loss", spec.target.loss)
    if spec.target.by is not None and spec.target.loss is None:
        raise make_field_error(
            "target.by",
            "requires target.loss, which is missing",
            "remove it, or write deadline, the time by which the job should be done",
            means="only a loss has a time; a job grows to its throughput as soon as it can",
        )
    for field, time in (("deadline", spec.deadline), ("target.by", spec.target.by)):
        if time is not None and time.tzinfo is None:
            raise make_field_error(
                field, f"{time} has no time zone", f"write {time.isoformat()}Z, or an offset"
            )
        if time is not None and not FIRST_YEAR <= time.year <= LAST_YEAR:
            wrong = f"{time} is out of range"
            raise make_field_error(
                field, wrong, f"write a year between {FIRST_YEAR} and {LAST_YEAR}, or remove it"
            )


def _check_program(spec: JobSpec) -> None:
    fields = {"script": spec.script, "module": spec.module, "command": spec.command}
    given = [name for name, value in fields.items() if value]
    if len(given) != 1:
        wrong = f"cannot be combined with {given[0]}" if given else "is missing, as are module and command"
        raise make_field_error(given[1] if given else "script", wrong, f"write one of {', '.join(fields)}")
    if spec.module:
        _check_module("module", spec.module, "write it as for python -m: package.train")
    if spec.command and spec.args:
        raise make_field_error("args", "cannot be combined with command", "write the arguments in command")


def _check_module(field: str, name: str, write: str) -> None:
    if not all(part.isidentifier() for part in name.split(".")):
        raise make_field_error(field, f"{name!r} is not the name of a Python module", write)


def _check_code(spec: JobSpec) -> None:
    if not spec.code:
        return
    if not CODE_DIGEST.fullmatch(spec.code):
        raise make_field_error(
            "code",
            f"{spec.code!r} is not the digest of some code",
            "leave it out and submit with --ship-code, which sends the code and writes its digest",
        )
    for field, path in (("workingDir", spec.working_dir), ("script", spec.script)):
        if path:
            check_code_path(field, path)


def check_code_path(field: str, path: str) -> None:
    """Check that a path begins at the root of the code that a job brings with it, and stays in it."""
    if PurePosixPath(path).is_absolute():
        wrong = f"{path!r} is an absolute path, and the job brings its code with it"
    elif PurePosixPath(os.path.normpath(path)).parts[:1] == ("..",):
        wrong = f"{path!r} leads out of the code that the job brings with it"
    else:
        return
    raise make_field_error(
        field,
        wrong,
        "write a path from the root of the code, or leave code out",
        means="the machines that train have that code, and perhaps nothing else",
    )


def _check_contract(spec: JobSpec) -> None:
    check_bounded_count("nprocPerNode", spec.nproc_per_node, 1)
    check_minimum("maxRestarts", spec.max_restarts, 0)
    check_positive("stallTimeoutSeconds", spec.stall_timeout_seconds)
    if spec.contract == "elastane":
        for field, value, usual in (
            ("nprocPerNode", spec.nproc_per_node, 1),
            ("maxRestarts", spec.max_restarts, 0),
            ("stallTimeoutSeconds", spec.stall_timeout_seconds, None),
        ):
            if value != usual:
                raise make_field_error(
                    field,
                    "requires contract: torchrun, which is missing",
                    "write contract: torchrun, or remove it",
                )
    elif spec.training.preload:
        raise make_field_error(
            "training.preload",
            "cannot be combined with contract: torchrun",
            "remove it",
            means="the imports of an unmodified script are loaded before its workers start anyway",
        )
    elif spec.training.origin:
        raise make_field_error(
            "training.from",
            "cannot be combined with contract: torchrun",
            "let the script read its own snapshot",
            means="an unmodified script saves no checkpoints of Elastane",
        )
    elif spec.target.loss is not None or spec.target.throughput is not None:
        raise make_field_error(
            "target",
            "cannot be combined with contract: torchrun",
            "remove one of the two",
            means="an unmodified script reports neither its loss nor its speed",
        )


def _check_policy(policy: ElasticPolicy) -> None:
    check_bounded_count("elasticPolicy.minReplicas", policy.min_replicas, 1)
    check_bounded_count("elasticPolicy.replicaIncrementStep", policy.replica_increment_step, 1)
    check_bounded_count("elasticPolicy.maxReplicas", policy.max_replicas, 1)
    low, high = policy.min_replicas, policy.max_replicas
    if high < low:
        raise make_field_error(
            "elasticPolicy.maxReplicas", f"{high} is less than minReplicas {low}", f"write {low} or more"
        )
    for field in ("graceful_shutdown_timeout", "scaling_timeout", "faulty_scale_down_timeout"):
        name = "".join(word.title() for word in f"{field}_in_seconds".split("_"))
        _check_timeout(f"elasticPolicy.{name[0].lower()}{name[1:]}", getattr(policy, f"{field}_in_seconds"))
    if policy.replica_discrete_values:
        _check_values(policy)


def _check_timeout(field: str, seconds: float) -> None:
    check_minimum(field, seconds, 0)
    if seconds > LONGEST_TIMEOUT_S:
        raise make_field_error(
            field,
            f"{seconds:g} is more than {LONGEST_TIMEOUT_S:g}",
            f"write {LONGEST_TIMEOUT_S:g} or less",
            means="another job may wait that long for the devices",
        )


def _check_processes(spec: JobSpec) -> None:
    """Check the number of processes of each worker, and what it has to fit."""
    processes, devices = spec.processes, spec.resources_per_worker.devices
    if not is_process_count(processes):
        raise make_field_error(
            "processes", f"{processes} is not a power of two", f"write {POWER}", means=WHY_POWER
        )
    if processes == 1:
        return
    if spec.contract == "torchrun":
        raise make_field_error(
            "processes",
            "cannot be combined with contract: torchrun",
            "write nprocPerNode, or remove contract if the script calls elastane.join()",
            means="an unmodified script divides its model itself",
        )
    for name, (allowed, why) in REFUSED_SETTINGS.items():
        if (value := getattr(spec.training, name)) != allowed:
            raise make_field_error(
                f"training.{name}",
                f"{value} cannot be combined with processes: {processes}",
                f"write {allowed}, or remove it",
                means=why,
            )
    if devices is not None and devices % processes:
        raise make_field_error(
            "resourcesPerWorker.devices",
            f"{devices} cannot be divided among the {processes} processes of a worker",
            f"write a multiple of {processes}, or remove it: each process then has one device",
        )


def _check_sites(spec: JobSpec) -> None:
    """Check the sites to which the script binds its data."""
    sites, regions = spec.data.sites, spec.data.regions
    if not sites:
        return
    if wrong := [site for site in sites if not re.fullmatch(SITE_NAME, site)]:
        raise make_field_error(
            "data.sites",
            f"{wrong[0]!r} cannot be the name of a site",
            "write at most 63 small letters, digits, dots and dashes, as in run.rounds",
        )
    if len(set(sites)) < len(sites) or len(sites) > MOST_SITES:
        raise make_field_error(
            "data.sites",
            f"{list(sites)} are not different ones, at most {MOST_SITES}",
            "write each site once",
        )
    if regions and (foreign := [site for site in sites if site not in regions]):
        raise make_field_error(
            "data.sites",
            f"{foreign[0]} is not among data.regions, {', '.join(regions)}",
            "remove the site, or write it in data.regions too",
            means="the data of the job may be read in these regions only",
        )
    if len(sites) > 1 and spec.stays_together:
        raise make_field_error(
            "data.sites",
            "has several sites, and all workers of the job must be on one machine",
            "remove contract: torchrun or processes, or write one site",
        )
    if spec.elastic_policy.limits[0] < len(sites):
        raise make_field_error(
            "elasticPolicy.minReplicas",
            f"{spec.elastic_policy.limits[0]} is less than the {len(sites)} sites of the job",
            f"write {len(sites)} or more",
            means="each site needs a worker, because only there its data is read",
        )


def _check_training(spec: JobSpec) -> None:
    training, processes = spec.training, max(1, spec.processes)
    check_minimum("training.seed", training.seed, 0)
    if training.seed > LARGEST_SEED:
        raise make_field_error(
            "training.seed", f"{training.seed} is larger than 2**63 - 1", "write a smaller one"
        )
    check_minimum("training.threads", training.threads, 1)
    check_minimum("training.virtualRanks", training.virtual_ranks, 1)
    most = spec.elastic_policy.limits[1]
    if training.virtual_ranks is not None and training.virtual_ranks < most * processes:
        unit = "workers" if processes == 1 else "processes"
        raise make_field_error(
            "training.virtualRanks",
            f"{training.virtual_ranks} is less than the {most * processes} {unit} that the job may have",
            f"write {most * processes} or more, or a smaller elasticPolicy.maxReplicas",
            means=f"each of the {unit} computes at least one virtual rank, so some would be idle",
        )
    if training.virtual_ranks is not None and training.virtual_ranks % processes:
        raise make_field_error(
            "training.virtualRanks",
            f"{training.virtual_ranks} cannot be divided among the {processes} processes of a worker",
            f"write a multiple of {processes}",
            means="they compute one virtual rank each, all at the same time",
        )
    if training.copies != "all":
        check_minimum("training.copies", training.copies, 1)
    parse_checkpoint_policy(training.checkpoints)
    check_no_credentials(training.origin, "training.from")
    for number, name in enumerate(training.preload):
        _check_module(f"training.preload[{number}]", name, "write it as in an import: package.module")


def _check_values(policy: ElasticPolicy) -> None:
    field, values = "elasticPolicy.replicaDiscreteValues", policy.replica_discrete_values
    if policy.replica_increment_step is not None:
        raise make_field_error(
            field, "cannot be combined with replicaIncrementStep", "write only one of the two"
        )
    ordered = sorted(set(values))
    if list(values) != ordered:
        raise make_field_error(field, f"{list(values)} is not ascending", f"write {ordered}")
    for i in (0, len(values) - 1):
        check_bounded_count(f"{field}[{i}]", values[i], 1)
    ends = (policy.min_replicas, policy.max_replicas)
    if ends not in ((values[0], values[-1]), (1, 1)):
        raise make_field_error(
            field,
            f"{list(values)} does not reach from minReplicas {ends[0]} to maxReplicas {ends[1]}",
            f"write minReplicas {values[0]} and maxReplicas {values[-1]}, or remove both",
            means="the smallest and the largest of the values are the limits",
        )
