"""The agent process of an attempt, which outlives the engine that started it."""

import errno
import os
import stat
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO

from elastane.cluster.nouns.engine import StartAttempt
from elastane.common.confined_files import ConfinedDirectory
from elastane.common.permissions import use_owner_rights
from elastane.common.untrusted_data import Malformed
from elastane.run.agent.environment import build_process_environment
from elastane.run.agent.presence import hold_presence
from elastane.run.nouns.attempts import RETRYABLE, AttemptOutcome
from elastane.run.nouns.rundir import RunDir
from elastane.run.observability.tail import read_end_of_text

AGENT_LOG = "agent"
SHOWN_LOG_BYTES = 2000


class AgentProcess:
    """A process that was started for an attempt and may not have begun it yet."""

    def __init__(self, attempt: int, process: "subprocess.Popen[bytes]", log: Path) -> None:
        self.attempt = attempt
        self._process = process
        self._log = log

    @property
    def is_running(self) -> bool:
        """Whether the process has not ended. Reading this property reaps a process that has."""
        return self._process.poll() is None

    def wait(self, timeout_s: float) -> None:
        """Wait for the end of the process, at most this long, and reap it."""
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(timeout_s)

    def is_newer_than(self, newest: int) -> bool:
        """Return whether this attempt is newer than the newest that has begun."""
        return newest < self.attempt

    @property
    def failure(self) -> AttemptOutcome | None:
        """How the process failed; None: it runs, or had nothing to do."""
        code = self._process.poll()
        if not code:
            return None
        last = ""
        # The run directory may have been removed meanwhile, or the log replaced.
        with suppress(OSError, Malformed), use_owner_rights(self._log.parents[1]):
            last = read_end_of_text(ConfinedDirectory(self._log.parents[1]), self._log, SHOWN_LOG_BYTES)
        how = f"exit code {code}" if code > 0 else f"signal {-code}"
        return AttemptOutcome(
            code=RETRYABLE, why=f"its agent ended with {how} before the attempt began; {self._log}: {last}"
        )


class FailedStart:
    """An attempt that this engine cannot start."""

    is_running = False

    def __init__(self, attempt: int, failure: AttemptOutcome) -> None:
        self.attempt = attempt
        self.failure = failure

    def is_newer_than(self, newest: int) -> bool:
        return True


def start_agent(
    run_dir: RunDir,
    order: StartAttempt,
    command: Sequence[str],
    environment: Mapping[str, str],
    working_dir: Path,
) -> AgentProcess:
    """Start the agent of an attempt in its own session, without a terminal.

    Raises:
        OSError: it cannot be started.
    """
    log = run_dir.log(AGENT_LOG)
    # The agent inherits the presence lock, so that it is present before its first line has run.
    presence = hold_presence(run_dir)
    try:
        with open_log(run_dir, log.name) as stream:
            process = subprocess.Popen(
                (*command, *build_agent_options(run_dir, order)),
                stdin=subprocess.DEVNULL,
                stdout=stream,
                stderr=stream,
                start_new_session=True,
                pass_fds=(presence,),
                cwd=working_dir,
                env=build_process_environment(environment),
            )
    finally:
        os.close(presence)
    return AgentProcess(order.attempt, process, log)


def open_log(run_dir: RunDir, name: str) -> BinaryIO:
    """Open a log for appending, but no link or pipe that earlier attempts may have put in its place.

    Raises:
        OSError: it cannot be opened, or is not a regular file.
    """
    folder = os.open(run_dir.logs, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
        descriptor = os.open(name, flags, 0o666, dir_fd=folder)
    finally:
        os.close(folder)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "not a regular file", str(run_dir.logs / name))
    os.set_blocking(descriptor, True)
    return os.fdopen(descriptor, "ab")


def build_agent_options(run_dir: RunDir, order: StartAttempt) -> tuple[str, ...]:
    low, high = order.spec.elastic_policy.limits
    return (
        str(run_dir.root),
        f"--attempt={order.attempt}",
        f"--workers={order.workers}",
        f"--limits={low}:{high}",
    )
