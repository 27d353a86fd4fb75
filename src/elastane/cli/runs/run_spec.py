"""From the options of ``elastane run`` to a `RunSpec`, or a sentence that says why not."""

import re
from pathlib import Path
from typing import Literal

import msgspec

from elastane.api.errors import BadInput
from elastane.api.field_checks import MOST_WORKERS
from elastane.api.spec import RunSpec
from elastane.attempts.script_modules import find_module_file
from elastane.cli.checkpoints.policy import CheckpointOptions, policy_of

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
LARGEST_SEED = 2**63 - 1


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """The options as they were typed; see ``elastane run --help``."""

    script: Path
    module: bool = False
    args: tuple[str, ...]
    workers: str | None
    start: int | None
    virtual_ranks: int | None
    copies: str
    convergence: Literal["exact", "fast"]
    seed: int
    threads: int
    transport: Literal["shared", "tcp"]
    digest_every: int
    checkpoints: CheckpointOptions = CheckpointOptions()
    save_optimizer: bool = False
    max_shard_size: str = "5GB"
    debug: bool = False


def build_spec(options: Options, name: str, cpus: int) -> RunSpec:
    """Check what was typed and fill in what was not.

    Args:
        options: as typed.
        name: of the run.
        cpus: of this machine, ``>= 1``; without ``--workers`` they bound the number of workers.

    Raises:
        BadInput: with the option to change.
    """
    check_run_name(name)
    script = find_script(options.script, module=options.module)
    check_at_least("--threads", options.threads, 1)
    check_at_least("--digest-every", options.digest_every, 1)
    check_at_least("--seed", options.seed, 0)
    if options.seed > LARGEST_SEED:
        raise BadInput(f"--seed {options.seed} is larger than 2**63 - 1", do="take a smaller one")
    if options.virtual_ranks is not None:
        check_at_least("--virtual-ranks", options.virtual_ranks, 1)
    copies = parse_copies(options.copies)
    if options.save_optimizer and copies is not None:
        raise BadInput(
            f"--save-optimizer needs --copies all, not {copies}",
            means="with fewer copies no worker holds the whole optimizer state when the run ends",
            do="use --copies all, or take the state from a checkpoint",
        )
    low, high = parse_worker_range("1" if options.debug else options.workers, options.virtual_ranks, cpus)
    start = low if options.start is None else options.start
    if not low <= start <= high:
        raise BadInput(
            f"--start {start} is outside --workers {low}:{high}",
            do=f"choose {low} to {high}, or a wider --workers",
        )
    return RunSpec(
        name=name,
        script=str(script),
        module=str(options.script) if options.module else "",
        args=options.args,
        min_workers=low,
        max_workers=high,
        start=start,
        self_sizing=options.start is None and low < high,
        virtual_ranks=options.virtual_ranks,
        copies=copies,
        convergence=options.convergence,
        seed=options.seed,
        threads=options.threads,
        digest_every=options.digest_every,
        transport=options.transport,
        checkpoints=policy_of(options.checkpoints),
        max_shard_bytes=parse_size("--max-shard-size", options.max_shard_size),
        save_optimizer=options.save_optimizer,
        debug=options.debug,
    )


class Changes(msgspec.Struct, frozen=True, kw_only=True):
    """What a resumed run may change; None: as it was."""

    workers: str | None
    start: int | None
    copies: str | None
    transport: Literal["shared", "tcp"] | None
    checkpoints: CheckpointOptions | None
    debug: bool = False


def change_spec(spec: RunSpec, changes: Changes, cpus: int) -> RunSpec:
    """The spec of a run's next attempt; nothing in it that decides about the trained bytes differs.

    Raises:
        BadInput: with the option to change.
    """
    low, high = spec.min_workers, spec.max_workers
    if changes.workers is not None or changes.debug:
        low, high = parse_worker_range("1" if changes.debug else changes.workers, spec.virtual_ranks, cpus)
    start = min(max(low, spec.start), high) if changes.start is None else changes.start
    if not low <= start <= high:
        raise BadInput(
            f"--start {start} is outside --workers {low}:{high}",
            do=f"choose {low} to {high}, or a wider --workers",
        )
    return msgspec.structs.replace(
        spec,
        min_workers=low,
        max_workers=high,
        start=start,
        self_sizing=spec.self_sizing and changes.start is None and low < high,
        copies=spec.copies if changes.copies is None else parse_copies(changes.copies),
        transport=changes.transport or spec.transport,
        checkpoints=spec.checkpoints if changes.checkpoints is None else policy_of(changes.checkpoints),
        debug=changes.debug,
    )


def parse_worker_range(text: str | None, virtual_ranks: int | None, cpus: int) -> tuple[int, int]:
    """``MIN:MAX`` or one number for both; without it 1 to the number of CPUs, but at least 2."""
    if text is None:
        most = max(cpus, 2)
        return 1, most if virtual_ranks is None else min(most, virtual_ranks)
    match = re.fullmatch(r"(\d+)(?::(\d+))?", text.strip())
    if match is None:
        raise BadInput(f"--workers {text!r} is not MIN:MAX", do="write for example --workers 1:8")
    low = int(match[1])
    high = int(match[2]) if match[2] is not None else low
    if low < 1:
        raise BadInput(f"--workers {text}: MIN is {low}; a run needs at least 1 worker", do="write 1 or more")
    if low > high:
        raise BadInput(f"--workers {text}: MIN {low} is larger than MAX {high}", do=f"write {high}:{low}")
    if high > MOST_WORKERS:
        raise BadInput(
            f"--workers {text} allows more than {MOST_WORKERS} workers",
            means="nothing has the devices for so many",
            do="write as many as there are devices for",
        )
    if virtual_ranks is not None and virtual_ranks < high:
        raise BadInput(
            f"--workers {text} allows {high} workers, but there are only {virtual_ranks} virtual ranks",
            means="a worker computes at least one virtual rank, so some would have nothing to do",
            do=f"write --virtual-ranks {high}, or --workers {min(low, virtual_ranks)}:{virtual_ranks}",
        )
    return low, high


def parse_copies(text: str) -> int | None:
    if text == "all":
        return None
    try:
        copies = int(text)
    except ValueError:
        raise BadInput(f"--copies {text!r} is neither 'all' nor a number", do="write all, or 2") from None
    check_at_least("--copies", copies, 1)
    return copies


def parse_size(option: str, text: str) -> int:
    """A size as people write it: ``5GB``, ``500 MB``, ``2GiB``, ``1000000``."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([kMGT]?)(i?)B?", text.strip())
    if match is None:
        raise BadInput(f"{option} {text!r} is not a size", do=f"write for example {option} 5GB or 500MB")
    unit = 1024 if match[3] else 1000
    size_bytes = int(float(match[1]) * unit ** " kMGT".index(match[2] or " "))
    check_at_least(option, size_bytes, 1)
    return size_bytes


def check_at_least(option: str, value: int, least: int) -> None:
    if value < least:
        raise BadInput(f"{option} {value} is less than {least}", do=f"write {least} or more")


def check_run_name(name: str) -> None:
    if not NAME.fullmatch(name):
        raise BadInput(
            f"--name {name!r} cannot name a run",
            means="a name is a directory too: letters, digits, dots, dashes and underscores, up to 100",
        )


def find_script(named: Path, *, module: bool, do: str = "check the path") -> Path:
    """The file to run; absolute, so that a worker started later finds it from any directory.

    Args:
        named: a path; with ``-m`` the name of a module.
        module: it is one.
        do: what to do if there is no such script.

    Raises:
        BadInput: there is none.
    """
    if module:
        return find_module_file(str(named), Path.cwd())
    check_script(named, do)
    return named.resolve()


def check_script(script: Path, do: str = "check the path") -> None:
    """Goes on if there is a file that can be read.

    Args:
        script: its path.
        do: what to do if nothing is there.

    Raises:
        BadInput: there is none.
    """
    if not script.exists():
        raise BadInput(f"there is no script {script}", do=do)
    if not script.is_file():
        raise BadInput(f"{script} is not a file", do="name the Python file that trains")
    try:
        script.open("rb").close()
    except OSError as error:
        raise BadInput(f"cannot read {script}: {error.strerror}") from error


def list_remarks(spec: RunSpec) -> list[str]:
    """What is allowed and yet worth a word before the run begins."""
    words = []
    if spec.copies is not None and spec.copies > spec.min_workers:
        words.append(
            f"copies {spec.copies}: with fewer than {spec.copies} workers there are as many copies as workers"
        )
    if spec.copies == 1:
        words.append(
            "copies 1: the death of any worker ends the run, for nobody else holds its optimizer state"
        )
    return words
