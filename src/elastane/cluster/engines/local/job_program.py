"""The run spec and the program of a job on this machine."""

import os
import re
from pathlib import Path

import msgspec

from elastane.cluster.nouns.job_checks import check_code_path
from elastane.cluster.nouns.jobs import JobSpec
from elastane.common.errors import BadInput
from elastane.run.attempts.script_modules import find_module_file
from elastane.run.nouns.checkpoint_policy import parse_checkpoint_policy
from elastane.run.nouns.spec import RunSpec, TorchrunContract

PYTHON = re.compile(r"python(3(\.\d+)?)?")


class Program(msgspec.Struct, frozen=True):
    """The program that each worker runs.

    Args:
        script: absolute path of a Python script, or of a module's file.
        module: its name; empty: the program is a script.
    """

    script: str
    module: str
    args: tuple[str, ...]


def make_run_spec(job: str, spec: JobSpec, python: str, code: Path | None = None) -> RunSpec:
    """Return the run spec of a job of this unique name; ``code`` is the root of the code that it brings.

    Raises:
        BadInput: this engine cannot run it.
    """
    program, training = resolve_program(job, spec, python, code), spec.training
    low, high = spec.elastic_policy.limits
    contract = build_job_contract(spec)
    return RunSpec(
        name=job,
        script=program.script,
        module=program.module,
        args=program.args,
        min_workers=low,
        max_workers=high,
        start=low,
        self_sizing=True,
        code=spec.code,
        directory="" if code is None else os.path.normpath(code / spec.working_dir),
        virtual_ranks=training.virtual_ranks,
        copies=None if training.copies == "all" else training.copies,
        convergence=training.convergence,
        numerics=training.numerics,
        seed=training.seed,
        threads=training.threads,
        checkpoints=None if contract else parse_checkpoint_policy(training.checkpoints),
        begins_from=training.origin,
        contract=contract,
        log=training.log,
        preload=training.preload,
        processes=spec.processes,
    )


def build_job_contract(spec: JobSpec) -> TorchrunContract | None:
    """Return the contract of a job's script; None: the script calls `elastane.join`."""
    if spec.contract == "elastane":
        return None
    return TorchrunContract(
        processes=spec.nproc_per_node,
        max_restarts=spec.max_restarts,
        stall_s=spec.stall_timeout_seconds,
        grace_s=spec.elastic_policy.graceful_shutdown_timeout_in_seconds,
    )


def resolve_program(job: str, spec: JobSpec, python: str, code: Path | None = None) -> Program:
    """Return a job's program; ``command`` may be ``[python, train.py]`` or ``[python, -m, train]``."""
    script, module, args = spec.script, spec.module, spec.args
    if spec.command:
        script, module, args = _parse_command(job, spec.command, python)
    if module:
        folder = Path(code or "", spec.working_dir) if code or spec.working_dir else None
        return Program(str(find_module_file(module, folder)), module, args)
    if code is not None:
        # A command names its script as a shell would, from the working directory.
        field, inside = ("command", Path(spec.working_dir, script)) if spec.command else ("script", script)
        check_code_path(field, str(inside))
        return Program(os.path.normpath(code / inside), "", args)
    path = os.path.normpath(Path(spec.working_dir, script))
    if not Path(path).is_absolute():
        raise BadInput(
            f"job {job} names the script {script}, which is not an absolute path",
            means="the engine does not know the directory in which the job was submitted",
            do="write the absolute path or workingDir; elastane submit does that itself",
        )
    return Program(path, "", args)


def _parse_command(job: str, command: tuple[str, ...], python: str) -> tuple[str, str, tuple[str, ...]]:
    """Return script, module and arguments; one of the first two is empty."""
    program, *arguments = command
    if program != python and not PYTHON.fullmatch(program):
        raise BadInput(
            f"the command of job {job} starts {program}",
            means=f"the local engine runs only Python scripts; each worker is a process of {python}",
            do="write command: [python, SCRIPT, ...], or script: and args:",
        )
    if arguments[:1] == ["-m"] and len(arguments) > 1:
        return "", arguments[1], tuple(arguments[2:])
    if not arguments or arguments[0].startswith("-"):
        option = f"passes {arguments[0]} to python" if arguments else "names no script"
        raise BadInput(
            f"job {job} {option}",
            means="the engine starts python itself, and runs a script or a module",
            do="write the script, or -m and the module, directly after python; set variables such as "
            "PYTHONUNBUFFERED in env:",
        )
    script, *args = arguments
    return script, "", tuple(args)
