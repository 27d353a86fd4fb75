"""Isolation of jobs by system users: agents start as the user of their team.

Only a controller that runs as root can do this. The users can pass through the controller's home to their own
run directories, and can list nothing in it.
"""

import contextlib
import os
import select
import stat
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import msgspec

from elastane.cluster.engines.local.accounts import Account, build_job_environment, find_account
from elastane.cluster.engines.local.agent_process import AGENT_LOG, AgentProcess, build_agent_options
from elastane.cluster.engines.local.user_launcher import LaunchFailure, LaunchTask
from elastane.cluster.nouns.engine import StartAttempt
from elastane.cluster.nouns.run_as import RunAs
from elastane.common.errors import BadInput, ElastaneError
from elastane.common.permissions import RIGHTS_OF_OTHERS, restrict_permissions, use_owner_rights
from elastane.common.safe_text import escape_line
from elastane.common.untrusted_data import Decoder, Malformed
from elastane.run.agent.environment import build_process_environment
from elastane.run.agent.presence import hold_presence
from elastane.run.nouns.rundir import RunDir

USER_LAUNCHER = (sys.executable, "-P", "-m", "elastane.cluster.engines.local.user_launcher")
PRIVATE_UMASK = 0o077
PASSAGE = 0o711
"""Mode of directories that users pass through and cannot list."""
CLAIMS_MODE = 0o1777
"""Mode of the folder in which the workers of all users claim GPUs."""
ENDING_S = 5.0
PATIENCE_S = 60.0
"""Longer than a process takes to start on a busy machine."""
REPORT_BYTES = 1 << 16
decode_launch_failure = Decoder[LaunchFailure](LaunchFailure, at_most_bytes=REPORT_BYTES)


class JobCannotStart(BadInput):
    """The user of a job cannot run it, now or later."""


# -- before jobs are started ---------------------------------------------------------------------------------


def check_users(run_as: RunAs) -> None:
    """Check that this process may start processes of every named user."""
    if not run_as.isolates:
        return
    if os.geteuid() != 0:
        raise BadInput(
            f"--run-as needs root, and this is user {os.geteuid()}",
            means="only root may start processes of another user; nothing was started",
            do="sudo elastane up --run-as ..., or omit --run-as to run jobs as your user",
        )
    for name in run_as.users:
        find_account(name)


def prepare_home(run_as: RunAs, home: Path) -> None:
    """Let the users pass through the controller's home to their run directories only.

    Raises:
        BadInput: a user could replace the home, or cannot reach the run directories or this program.
        OSError: the home cannot be changed.
    """
    check_users(run_as)
    _check_only_root_changes(home)
    runs = home / "runs"
    runs.mkdir(mode=0o700, parents=True, exist_ok=True)
    for private in (home / "unsettled", *(entry for entry in runs.iterdir() if not entry.is_symlink())):
        # The users that run jobs now must not read files of jobs that ran as root before.
        if private.is_dir() and private.stat().st_uid == os.geteuid():
            restrict_permissions(private, RIGHTS_OF_OTHERS)
    claims = get_gpu_claims_folder(home)
    claims.mkdir(exist_ok=True)
    claims.chmod(CLAIMS_MODE)
    for passage in (home, runs):
        passage.chmod(PASSAGE)
    for name in run_as.users:
        _check_reach(find_account(name), runs)


def get_gpu_claims_folder(home: Path) -> Path:
    """Return the folder in which the workers of all users claim GPUs."""
    return home / "gpus"


def _check_only_root_changes(home: Path) -> None:
    """Check that only root can replace the home by another directory."""
    place = home.resolve()
    for directory in (place, *place.parents):
        found = directory.stat()
        writable = found.st_mode & 0o022 and not found.st_mode & stat.S_ISVTX
        if found.st_uid != 0 or writable:
            mode = stat.S_IMODE(found.st_mode)
            raise BadInput(
                f"{directory} can be changed by other users than root (owner {found.st_uid}, mode {mode:o})",
                means=f"with --run-as, only root may be able to replace files in {home}; nothing was started",
                do="use a home of root: ELASTANE_HOME=/var/lib/elastane elastane up --run-as ...",
            )


def _check_reach(account: Account, runs: Path) -> None:
    """Check that a user can run this program and reach the run directories."""
    command = [*USER_LAUNCHER, "--reach", str(runs)]
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            check=False,
            timeout=PATIENCE_S,
            cwd="/",
            env=build_job_environment({}, os.environ, account),
            user=account.uid,
            group=account.gid,
            extra_groups=account.groups,
            umask=PRIVATE_UMASK,
        )
    except PermissionError as error:
        raise BadInput(
            f"user {account.name} cannot run {sys.executable}",
            means=f"no job of that user could start ({error.strerror}); nothing was started",
            do="install Python and Elastane where every user can read them, such as /opt/elastane",
        ) from error
    if done.returncode:
        last = done.stderr.decode(errors="replace").strip().rpartition("\n")[2]
        raise BadInput(
            f"jobs cannot run as user {account.name}: {escape_line(last) or f'exit code {done.returncode}'}",
            means=f"that user must import elastane and pass through {runs}; nothing was started",
            do="use a home that others can pass through: ELASTANE_HOME=/var/lib/elastane elastane up ...; "
            "and install Elastane where every user can read it",
        )


# -- starting an attempt -------------------------------------------------------------------------------------


def start_agent_as_user(
    account: Account,
    run_dir: RunDir,
    order: StartAttempt,
    command: Sequence[str],
    environment: Mapping[str, str],
    archive: Path | None = None,
) -> AgentProcess:
    """Start the agent of an attempt as another user, after that user has prepared the run directory.

    It may take seconds: call it from a thread.

    Args:
        archive: of the code that the job has brought with it, which that user may not open; None: it has
            brought none.

    Raises:
        JobCannotStart: the job cannot start, now or later.
        ElastaneError: the job cannot start now.
        OSError: the job cannot start now.
    """
    ensure_run_directory(run_dir.root, account)
    agent_command = (*command, *build_agent_options(run_dir, order))
    with _open_archive(archive) as code:
        task = LaunchTask(order, str(run_dir.root), agent_command, account.uid, account.name, code)
        return _start_launcher(account, run_dir, task, environment)


def _start_launcher(
    account: Account, run_dir: RunDir, task: LaunchTask, environment: Mapping[str, str]
) -> AgentProcess:
    with use_owner_rights(run_dir.root):
        presence = hold_presence(run_dir)
    reader, writer = os.pipe()
    try:
        # Pass the task in memory, so that no other user can read the job's environment.
        with os.fdopen(os.memfd_create("elastane-launch-task"), "w+b") as task_file:
            task_file.write(msgspec.json.encode(task))
            task_file.seek(0)
            process = subprocess.Popen(
                [*USER_LAUNCHER, f"--report={writer}"],
                stdin=task_file,
                stdout=writer,
                stderr=writer,
                start_new_session=True,
                pass_fds=(presence, writer, *([] if task.archive is None else [task.archive])),
                cwd="/",
                env=build_process_environment(environment),
                user=account.uid,
                group=account.gid,
                extra_groups=account.groups,
                umask=PRIVATE_UMASK,
            )
    except BaseException:
        os.close(reader)
        raise
    finally:
        os.close(presence)
        os.close(writer)
    try:
        output = _read_report(reader)
    finally:
        os.close(reader)
    if output is None:
        process.kill()
        process.wait()
        raise ElastaneError(
            f"the first process of job {task.order.job} was not ready within {PATIENCE_S:g} s"
        )
    if output.strip() and _has_failed(process):
        raise _make_launch_error(output, account)
    return AgentProcess(task.order.attempt, process, run_dir.log(AGENT_LOG))


@contextlib.contextmanager
def _open_archive(path: Path | None) -> Iterator[int | None]:
    """Yield the descriptor of an archive; None: it is missing. The user of the job may not open it."""
    try:
        archive = None if path is None else path.open("rb")
    except FileNotFoundError:
        archive = None
    with contextlib.nullcontext() if archive is None else archive:
        yield None if archive is None else archive.fileno()


def _has_failed(process: "subprocess.Popen[bytes]") -> bool:
    """Return whether a process that closed its pipe failed; if not, it has warned and become the agent."""
    try:
        return process.wait(ENDING_S) != 0
    except subprocess.TimeoutExpired:
        return False


def ensure_run_directory(root: Path, account: Account) -> None:
    """Make a run directory that belongs to a user, or check that an existing one does.

    Raises:
        ElastaneError: it belongs to another user.
        OSError: it cannot be made.
    """
    with contextlib.suppress(FileExistsError):
        root.mkdir(mode=0o700)
    found = root.lstat()
    # A controller was killed after it made the directory and before it changed the owner.
    if stat.S_ISDIR(found.st_mode) and found.st_uid == 0 and not any(root.iterdir()):
        os.chown(root, account.uid, account.gid, follow_symlinks=False)
        return
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != account.uid:
        raise ElastaneError(
            f"the run directory {root} belongs to user {found.st_uid}, but the job runs as {account.name}",
            means="files of another user cannot be trusted; the job waits",
            do="start the controller with the previous user of the job (elastane up --run-as), "
            "or cancel the job and submit it under another name",
        )


def _make_launch_error(output: bytes, account: Account) -> ElastaneError:
    last = output.strip().rpartition(b"\n")[2]
    try:
        failure = decode_launch_failure(last)
    except Malformed:
        return ElastaneError(
            f"no process of the job could start as {account.name}: "
            f"{escape_line(last.decode(errors='replace'))}",
            do=f"check that user {account.name} can run {sys.executable} and import elastane",
        )
    return JobCannotStart(failure.why) if failure.permanent else ElastaneError(failure.why)


def _read_report(pipe: int) -> bytes | None:
    """Return the output of the process until it closes its pipe; None: it did not close it in time."""
    deadline, output = time.monotonic() + PATIENCE_S, b""
    poller = select.poll()
    poller.register(pipe, select.POLLIN)
    while (left_s := deadline - time.monotonic()) > 0 and len(output) < REPORT_BYTES:
        if poller.poll(left_s * 1000):
            read = os.read(pipe, REPORT_BYTES)
            if not read:
                return output
            output += read
    return output or None
