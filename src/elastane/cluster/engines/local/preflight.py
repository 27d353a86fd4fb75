"""What a machine does before an attempt of a job begins there, whichever engine has started its process.

It checks the script and the working directory, claims the run directory, and checks the space on the disk.
"""

import errno
import os
import stat
import sys
from collections.abc import Callable
from pathlib import Path

from elastane.cluster.engines.local.job_program import make_run_spec
from elastane.cluster.nouns.jobs import JobSpec
from elastane.common.errors import BadInput, ElastaneError
from elastane.run.attempts.run_directory import claim_run_directory
from elastane.run.nouns.attempts import Attempt
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


def refuse_run_of_another(
    run_dir: RunDir, attempt: Attempt | None, submitted_s: float, *, is_claimed: bool
) -> None:
    """Refuse a directory with a run that was not started for a job: the job would continue that run.

    Args:
        attempt: the newest attempt in the directory; None: none has begun.
        submitted_s: when the job was submitted, in seconds since 1970.
        is_claimed: the directory may have been claimed for the first attempt of the job.

    Raises:
        BadInput: it holds such a run.
    """
    if not run_dir.run.exists() or (attempt is None and run_dir.attempt.exists()):
        # There is no run, or its attempt is damaged, which the next one reports.
        return
    # An attempt of a job is recorded before its first event. `elastane run` records events only.
    is_own = is_claimed and not run_dir.events.exists() if attempt is None else attempt.began_s >= submitted_s
    if not is_own:
        raise BadInput(
            f"{run_dir.root} holds a run of another job",
            means="its outcome and its checkpoints would count as those of this job",
            do="submit this job under another name",
        )


def claim_job_run(run_dir: RunDir, run: RunSpec, *, linked: bool = False) -> None:
    """Claim the run directory of a job for its first attempt, and check that an attempt can write there.

    Args:
        linked: see `claim_run_directory`.

    Raises:
        ElastaneError: it is not available now.
        OSError: an attempt could not write there now.
    """
    if not run_dir.run.exists():
        try:
            with claim_run_directory(run, run_dir.root, linked=linked):
                pass
        except BadInput as error:
            # Such as a live run in it. The job itself is sound, so another attempt may succeed.
            raise ElastaneError(error.what, means=error.means, do=error.do) from error
    check_disk_space(run_dir)


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
