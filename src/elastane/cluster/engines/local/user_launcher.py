"""``python -m elastane.cluster.engines.local.user_launcher``: starts the agent of an attempt as another user.

The controller starts this program as that user, so that no file in the user's run directory is ever opened
with the rights of root. The program prepares the run directory and then becomes the agent of the attempt. If
it cannot, it writes the reason to a pipe; the pipe closes once the agent runs.
"""

import argparse
import errno
import os
import sys
from pathlib import Path
from typing import BinaryIO, NoReturn

import msgspec

from elastane.cluster.engines.local.agent_process import AGENT_LOG, open_log
from elastane.cluster.engines.local.job_code import place_code
from elastane.cluster.engines.local.preflight import (
    check_job_files,
    claim_job_run,
    explain_environment_too_large,
    find_blocking_directory,
)
from elastane.cluster.nouns.engine import StartAttempt
from elastane.common.errors import BadInput, ElastaneError
from elastane.common.untrusted_data import Decoder
from elastane.run.machines.joining.shipped_code import CODE
from elastane.run.nouns.rundir import RunDir


class LaunchTask(msgspec.Struct, frozen=True):
    """The agent that this program becomes.

    Args:
        root: the run directory, which exists and belongs to the user.
        uid: id of the user that this process must run as.
        archive: descriptor of the archive of the job's code; None: it is missing, or not needed.
    """

    order: StartAttempt
    root: str
    command: tuple[str, ...]
    uid: int
    user: str
    archive: int | None = None


class LaunchFailure(msgspec.Struct, frozen=True):
    """Why the agent does not run; ``permanent``: a retry would fail in the same way."""

    why: str
    permanent: bool = False


decode_launch_task = Decoder[LaunchTask](LaunchTask)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--report", type=int, help="descriptor of the pipe")
    parser.add_argument("--reach", type=Path, help="only check that the user can pass through this directory")
    options = parser.parse_args()
    if options.reach is not None:
        sys.exit(0 if os.access(options.reach, os.X_OK) else find_blocking_directory(options.reach / "."))
    os.set_inheritable(options.report, False)
    failure = _try_become_agent(decode_launch_task(sys.stdin.buffer.read()))
    os.write(options.report, msgspec.json.encode(failure) + b"\n")
    sys.exit(1)


def _try_become_agent(task: LaunchTask) -> LaunchFailure:
    """Become the agent, or return why that failed. Only this function turns the failure into a value."""
    job = task.order.job
    try:
        become_agent(task)
    except BadInput as error:
        return LaunchFailure(str(error), permanent=True)
    except ElastaneError as error:
        return LaunchFailure(str(error))
    except OSError as error:
        if error.errno == errno.E2BIG:
            return LaunchFailure(str(explain_environment_too_large(job)), permanent=True)
        return LaunchFailure(str(error))


def become_agent(task: LaunchTask) -> NoReturn:
    """Replace this process by the agent of an attempt.

    Raises:
        BadInput: the job cannot begin, now or later.
        ElastaneError: the run directory is not available now.
        OSError: the process cannot be replaced now.
    """
    # A mistake of the controller must not run a job as root.
    if task.uid == 0 or os.getresuid() != (task.uid, task.uid, task.uid) or 0 in os.getresgid():
        raise PermissionError(f"this process must run as user {task.uid} and runs as {os.getresuid()}")
    run_dir = RunDir(Path(task.root))
    code = _place_own_code(run_dir, task)
    run, working_dir = check_job_files(task.order.job, task.order.spec, task.user, code=code)
    claim_job_run(run_dir, run)
    null = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
    os.chdir(working_dir)
    with open_log(run_dir, run_dir.log(AGENT_LOG).name) as log:
        for source, target in ((null, 0), (log.fileno(), 1), (log.fileno(), 2)):
            os.dup2(source, target)
    os.execvp(task.command[0], task.command)  # noqa: S606 - the agent of this engine


def _place_own_code(run_dir: RunDir, task: LaunchTask) -> Path | None:
    """Place the code that the job has brought with it, see `place_code`; None: it has brought none."""

    def open_archive() -> BinaryIO:
        if task.archive is None:
            raise FileNotFoundError
        return os.fdopen(task.archive, "rb")

    digest = task.order.spec.code
    if not digest:
        return None
    if task.archive is not None:
        # The agent, which this process becomes, must not have it open.
        os.set_inheritable(task.archive, False)
    return place_code(run_dir.root / CODE, digest, open_archive)


if __name__ == "__main__":
    main()
