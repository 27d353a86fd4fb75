"""Conversion of the arguments of ``elastane submit`` to a checked `JobSpec`."""

import stat
from collections.abc import Iterable, Mapping
from datetime import datetime
from pathlib import Path
from typing import Literal

import msgspec

from elastane.cli.contract_options import build_contract, read_job_process_count, read_stall_timeout_s
from elastane.cli.jobs.job_file import anchor_paths, bring_code, find_code_root, is_job_file, read_job
from elastane.cli.jobs.job_options import JobOptions
from elastane.cli.option_values import read_duration_s, read_future_time, read_worker_range
from elastane.cli.options import replace_given
from elastane.cli.scripts import check_script, find_script
from elastane.cli.teams import warn_undeclared_team
from elastane.cli.train_options import change_checkpoints, read_trackers
from elastane.cluster.nouns.config import Team
from elastane.cluster.nouns.job_checks import check_job_spec
from elastane.cluster.nouns.jobs import ElasticPolicy, JobSpec, JobTraining
from elastane.common.errors import BadField, BadInput
from elastane.common.generated_names import generate_name
from elastane.run.attempts.script_modules import find_module_file


class Invocation(msgspec.Struct, frozen=True, kw_only=True):
    """The absolute working directory, the environment, and the time with its zone, of a typed command."""

    directory: Path
    environment: Mapping[str, str]
    now: datetime


def build_job(
    what: Path, args: tuple[str, ...], options: JobOptions, invocation: Invocation, *, team: str
) -> JobSpec:
    """Return the job of a file, a script or a module; options win over fields of the file.

    ``team`` is for a job for which neither the file nor an option names one.
    """
    file = what if is_job_file(what) and not options.module else None
    if file is None:
        written = _describe_script(what, args, invocation.directory, team=team, module=options.module)
    else:
        written = _read_file(file, args, team=team)
    spec = anchor_paths(apply_options(written, options, invocation), invocation.directory)
    if options.ship_code and find_code_root(spec) is None:
        spec = bring_code(spec, invocation.directory if file is None else file.absolute().parent)
    try:
        _check(spec)
    except BadField as error:
        # Blame the file only if it is wrong without the options.
        if file is not None and _fails_alike(written, error):
            raise BadInput(f"{file}: {error.what}", means=error.means, do=error.do) from error
        raise
    return spec


def _check(spec: JobSpec) -> None:
    """Check a job before or after its code is sent, see `check_job_spec`."""
    is_sent = find_code_root(spec) is None
    check_job_spec(spec if is_sent else msgspec.structs.replace(spec, code="0" * 64))


def apply_options(spec: JobSpec, options: JobOptions, invocation: Invocation) -> JobSpec:
    """Return the job with the typed options applied; the result is not checked."""
    if options.contract is not None:
        build_contract(options)
    kinds = None if options.kind is None else tuple(options.kind)
    resources = replace_given(spec.resources_per_worker, devices=options.devices, kinds=kinds)
    deadline = (
        None if options.deadline is None else read_future_time("--deadline", options.deadline, invocation.now)
    )
    return replace_given(
        spec,
        name=options.name,
        team=options.team,
        queue=options.queue,
        priority_class=options.priority,
        image=options.image,
        spot=options.spot,
        borrow=options.borrow,
        deadline=deadline,
        budget=options.budget,
        env=spec.env | read_environment(options.env, invocation.environment) if options.env else None,
        resources_per_worker=resources,
        contract=options.contract,
        nproc_per_node=read_job_process_count(options),
        processes=options.processes,
        max_restarts=options.max_restarts,
        stall_timeout_seconds=read_stall_timeout_s(options),
        elastic_policy=_change_policy(spec.elastic_policy, options),
        run_policy=replace_given(spec.run_policy, job_max_retry_count=options.retries),
        training=_change_training(spec.training, options),
    )


def check_program(spec: JobSpec, file: Path) -> None:
    """Check that the program of a job file and its working directory are on this machine, or in its code."""
    if spec.code:
        # Its files are checked when they are sent; sent ones may be on other machines only.
        return
    field = "workingDir"
    try:
        if spec.working_dir:
            _check_directory(Path(spec.working_dir))
        field = "script" if spec.script else "module"
        if spec.script:
            check_script(Path(spec.script))
        elif spec.module:
            find_module_file(spec.module, Path(spec.working_dir))
    except BadInput as error:
        if field == "module":
            do = "correct module: in the file, or workingDir:, the directory in which the job starts"
        else:
            do = f"correct {field}: in the file; a relative path starts from the directory of the file"
        raise BadInput(f"{file}: {error.what}", means=error.means, do=do) from error


def list_notes(spec: JobSpec, teams: Iterable[Team], now: datetime) -> tuple[str, ...]:
    """Return warnings about a valid job that the user may not have intended; ``teams`` are declared."""
    return tuple(filter(None, (warn_undeclared_team(spec.team, teams), warn_late(spec.deadline, now))))


def warn_late(deadline: datetime | None, now: datetime) -> str:
    """Return a warning about a deadline that has passed; empty if it has not."""
    if deadline is None or deadline > now:
        return ""
    local = deadline.astimezone(now.tzinfo)
    return f"its deadline, {local:%Y-%m-%d %H:%M}, has passed: it grows before other jobs of its priority"


def format_limits(low: int, high: int) -> str:
    """Return the fewest and most workers as text: ``1 to 4 workers``."""
    return f"{high} worker{'s' * (high > 1)}" if low == high else f"{low} to {high} workers"


def read_environment(options: Iterable[str], own: Mapping[str, str]) -> dict[str, str]:
    """Return the variables of ``NAME=VALUE`` texts; ``NAME`` alone takes the value from the terminal."""
    found = {}
    for option in options:
        name, equals, value = option.partition("=")
        if not equals and name not in own:
            raise BadInput(
                f"--env {name}: this terminal has no such variable", do=f"write --env {name}=VALUE"
            )
        found[name] = value if equals else own[name]
    return found


def _read_file(file: Path, args: tuple[str, ...], *, team: str) -> JobSpec:
    if args:
        raise BadInput(
            f"the job file {file} cannot be combined with arguments for a script",
            do=f"write args: into {file}, or submit the script itself",
        )
    return read_job(file, name=generate_name(file.stem), team=team)


def _describe_script(
    named: Path, args: tuple[str, ...], directory: Path, *, team: str, module: bool
) -> JobSpec:
    find_script(named, module=module)
    if module:
        name = generate_name(named.name.rpartition(".")[2])
        return JobSpec(name=name, team=team, module=str(named), args=args, working_dir=str(directory))
    return JobSpec(
        name=generate_name(named.stem),
        team=team,
        script=str(named.absolute()),
        args=args,
        working_dir=str(directory),
    )


def _fails_alike(written: JobSpec, error: BadField) -> bool:
    try:
        _check(written)
    except BadField as own:
        return own.what == error.what
    return False


def _change_policy(before: ElasticPolicy, options: JobOptions) -> ElasticPolicy:
    grace_s = None if options.grace is None else read_duration_s("--grace", options.grace)
    policy = replace_given(before, graceful_shutdown_timeout_in_seconds=grace_s)
    if options.workers is None:
        return policy
    low, high = read_worker_range(options.workers)
    return msgspec.structs.replace(policy, min_replicas=low, max_replicas=high)


def _change_training(training: JobTraining, options: JobOptions) -> JobTraining:
    return replace_given(
        training,
        checkpoints=change_checkpoints(training.checkpoints, options),
        origin=options.from_,
        seed=options.seed,
        threads=options.threads,
        virtual_ranks=options.virtual_ranks,
        convergence=options.convergence,
        numerics=options.numerics,
        copies=_read_job_copies(options.copies),
        log=read_trackers(options),
    )


def _read_job_copies(text: str | None) -> int | Literal["all"] | None:
    if text is None or text == "all":
        return None if text is None else "all"
    if not text.isdecimal():
        raise BadInput(
            f"invalid --copies: {text!r} is neither 'all' nor a number", do="write all, or a number such as 2"
        )
    return int(text)


def _check_directory(directory: Path) -> None:
    try:
        found = stat.S_ISDIR(directory.stat().st_mode)
    except FileNotFoundError as error:
        raise BadInput(f"there is no directory {directory}") from error
    except OSError as error:
        raise BadInput(f"cannot enter {directory}: {error.strerror}") from error
    if not found:
        raise BadInput(f"{directory} is not a directory")
