"""Checks before a job's processes start: its script, its working directory, space on the disk."""

import errno
import os
import stat
import sys
from collections.abc import Callable
from pathlib import Path

from elastane.cluster.engines.local.job_program import make_run_spec
from elastane.cluster.nouns.jobs import JobSpec
from elastane.common.errors import BadInput
from elastane.run.nouns.rundir import RunDir
from elastane.run.nouns.spec import RunSpec

NEVER = (errno.ENOENT, errno.ENOTDIR, errno.EACCES, errno.ELOOP, errno.ENAMETOOLONG)
"""Errors that last until the path or its permissions change."""
ROOM_BYTES = 1 << 16
"""More than an attempt writes at its beginning."""


def check_job_files(
    job: str, spec: JobSpec, user: str = "", *, code: Path | None = None
) -> tuple[RunSpec, Path]:
    """Check that this process may read a job's script and enter its directory; return spec and directory.

    Args:
        user: name of this process's user, for errors; empty: the engine's own user.
        code: root of the code that the job has brought with it; None: it has brought none.

    Raises:
        BadInput: this engine cannot run it, now or later.
        OSError: the paths cannot be checked now.
    """
    run = make_run_spec(job, spec, sys.executable, code)
    script = Path(run.script)
    working_dir = Path(run.directory or spec.working_dir or script.parent)
    reader = f"user {user}" if user else "the user of its engine"
    wrong = _describe_problem(script, "script", stat.S_ISREG, "a file", os.R_OK, f"be read by {reader}")
    wrong = wrong or _describe_problem(
        working_dir, "working directory", stat.S_ISDIR, "a directory", os.X_OK, f"be entered by {reader}"
    )
    if wrong:
        where = "in the code" if code else "on the machine of the engine"
        raise BadInput(
            f"job {job} cannot start: {wrong}",
            means="a retry would fail too, so the job has failed; its saved files stay",
            do=f"correct this {where}, and submit the job again under another name",
        )
    return run, working_dir


def check_disk_space(run_dir: RunDir) -> None:
    """Check that an attempt could record its beginning; otherwise it would end and count as a crash.

    Raises:
        OSError: it could not, for example because the disk is full.
    """
    trial = run_dir.root / ".room"
    # The leftover file of a dead process may be a link, so replace it instead of writing through it.
    trial.unlink(missing_ok=True)
    descriptor = os.open(trial, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(bytes(ROOM_BYTES))
            file.flush()
            os.fsync(file.fileno())
    finally:
        trial.unlink(missing_ok=True)


def explain_environment_too_large(job: str) -> BadInput:
    return BadInput(
        f"job {job} cannot start: its env is larger than the kernel allows",
        means="a retry would fail too, so the job has failed",
        do="keep each variable below 128 KiB, all together below 1 MiB, and put the rest into a file",
    )


def _describe_problem(
    path: Path, what: str, is_one: Callable[[int], bool], noun: str, right: int, use: str
) -> str:
    """Describe the problem with a path of the job; empty: there is none.

    The path is not opened: opening a pipe would block.
    """
    try:
        mode = path.stat().st_mode
    except OSError as error:
        if error.errno not in NEVER:
            raise
        if error.errno in {errno.ENOENT, errno.ENOTDIR}:
            return f"there is no {what} {path}"
        if error.errno == errno.EACCES:
            return f"its {what} {path} cannot {use}: {find_blocking_directory(path)}"
        return f"its {what} {path}: {error.strerror}"
    if not is_one(mode):
        return f"its {what} {path} is not {noun}"
    return "" if os.access(path, right) else f"its {what} {path} cannot {use}"


def find_blocking_directory(path: Path) -> str:
    """Name the uppermost directory above a path that this process may not enter."""
    for directory in reversed(path.absolute().parents):
        if not os.access(directory, os.X_OK):
            return f"that user cannot enter {directory}"
    return "that user has no access to it"
