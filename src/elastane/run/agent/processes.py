"""The child processes of the agent, watched by pidfd, which a reused pid cannot confuse."""

import asyncio
import contextlib
import fcntl
import os
import signal
import struct
import subprocess
import sys
import termios
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import msgspec

from elastane.run.agent.environment import build_process_environment, build_worker_environment
from elastane.run.agent.head_start import FORK_SERVER, LateOptions, take_head_start
from elastane.run.nouns.notices import hold_notices
from elastane.run.nouns.rundir import RunDir

PF_EXITING = 0x4
"""The kernel's flag of a process that is exiting."""


@dataclass(frozen=True, slots=True)
class Commands:
    """The commands of the coordinator and the fork server, up to their options.

    ``-P`` keeps the working directory out of their module path: it may contain a user's ``logging.py``.
    """

    coordinator: tuple[str, ...] = (sys.executable, "-P", "-m", "elastane.run.coordinator")
    fork_server: tuple[str, ...] = FORK_SERVER


class ProcessWatch:
    """Watches for the end of a process, which need not be a child of this one.

    Raises:
        ProcessLookupError: it has ended and was reaped.
    """

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self._pidfd = os.pidfd_open(pid)
        self._ended = asyncio.Event()
        self._closed = False
        asyncio.get_running_loop().add_reader(self._pidfd, self._record_end)

    def _record_end(self) -> None:
        asyncio.get_running_loop().remove_reader(self._pidfd)
        self._ended.set()

    async def wait(self) -> None:
        """Wait for the end of the process."""
        await self._ended.wait()

    @property
    def alive(self) -> bool:
        """Whether the process has not begun to exit.

        The peers of an exiting process lose their connections a little before it has ended.
        """
        if self._ended.is_set():
            return False
        try:
            stat = Path(f"/proc/{self.pid}/stat").read_text()
        except (FileNotFoundError, ProcessLookupError):
            return False
        # Flags are the seventh field after the name in brackets, which may contain anything: see proc(5).
        flags = int(stat.rpartition(")")[2].split()[6])
        return not flags & PF_EXITING

    def send(self, number: signal.Signals) -> None:
        """Signal the process, if it has not ended and is still watched."""
        if self._closed:
            return
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(self._pidfd, number)

    def close(self) -> None:
        if not self._ended.is_set():
            asyncio.get_running_loop().remove_reader(self._pidfd)
        self._closed = True
        os.close(self._pidfd)


class Child:
    """A child process of the agent, in its own session so that Ctrl-C does not reach it.

    Notices are blocked when it begins: its imports take a while, and then it withstands them.

    Args:
        log: receives its standard error, and its standard output unless that is a pipe.
        pass_fds: file descriptors that it inherits.
        pipe_in: its standard input is a pipe from the agent.
        pipe_out: its standard output is a pipe to the agent.
        threads: threads of its numerical libraries, as in a worker; None: do not set them.
        numerics: as in `elastane.run.nouns.spec.RunSpec`; only with ``threads``.

    Raises:
        OSError: it cannot be started.
    """

    def __init__(
        self,
        command: Sequence[str],
        log: Path,
        *,
        pass_fds: Sequence[int],
        pipe_in: bool = False,
        pipe_out: bool = False,
        threads: int | None = None,
        numerics: str = "native",
    ) -> None:
        environment = (
            build_process_environment(os.environ)
            if threads is None
            else build_worker_environment(os.environ, threads, numerics)
        )
        with log.open("ab") as stream, hold_notices():
            self.process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE if pipe_in else subprocess.DEVNULL,
                stdout=subprocess.PIPE if pipe_out else stream,
                stderr=stream,
                pass_fds=pass_fds,
                start_new_session=True,
                env=environment,
                bufsize=0,
            )
        self._watch = ProcessWatch(self.process.pid)

    @classmethod
    def adopt(cls, process: "subprocess.Popen[bytes]") -> Self:
        """Return a child that this process has started already, in the same way."""
        self = cls.__new__(cls)
        self.process, self._watch = process, ProcessWatch(process.pid)
        return self

    @property
    def pid(self) -> int:
        return self.process.pid

    async def wait(self) -> int:
        """Wait for the end of the process and return its exit code, negative for a signal."""
        await self._watch.wait()
        return self.process.wait()

    async def end(self, grace_s: float) -> None:
        """Close its standard input, and send SIGKILL if it has not ended after ``grace_s`` seconds."""
        self.close_input()
        try:
            async with asyncio.timeout(grace_s):
                await self.wait()
        except TimeoutError:
            self.kill()
            await self.wait()

    def write_line(self, line: bytes) -> None:
        """Write a line to the process's standard input; a line to a dead process is lost."""
        if self.process.stdin is None:
            raise TypeError("this process was started without a pipe as its standard input")
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.write(line + b"\n")

    @property
    def has_unread_input(self) -> bool:
        """Whether the process has not read all of its standard input yet, as while it imports."""
        if self.process.stdin is None or self.process.stdin.closed:
            return False
        return bool(struct.unpack("i", fcntl.ioctl(self.process.stdin, termios.FIONREAD, bytes(4)))[0])

    def close_input(self) -> None:
        """Close the pipe to its standard input: a server that reads it ends."""
        if self.process.stdin is not None:
            self.process.stdin.close()

    def kill(self) -> None:
        if self.process.poll() is None:
            self._watch.send(signal.SIGKILL)

    def close(self) -> None:
        """Close the descriptors of a process that has ended."""
        self._watch.close()
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                pipe.close()


def start_coordinator(commands: Commands, run_dir: RunDir, *, socket_fd: int, lifeline: int) -> Child:
    """Start a coordinator, which waits until `Child.write_line` gives it its term."""
    options = ("--fd", str(socket_fd), "--lifeline", str(lifeline))
    command = (*commands.coordinator, "--run-dir", str(run_dir.root), *options)
    if run_dir.node:
        command = (*command, "--node", run_dir.node)
    return Child(command, run_dir.node_files.log("coordinator"), pass_fds=(socket_fd, lifeline), pipe_in=True)


def start_fork_server(
    commands: Commands,
    run_dir: RunDir,
    *,
    lifeline: int,
    attempt: int,
    threads: int,
    numerics: str,
    debug: bool = False,
) -> Child:
    """Start a fork server; with ``debug``, its workers get the standard streams of this process.

    One that had a head start goes on, if it fits.
    """
    options: tuple[str, ...] = ("--run-dir", str(run_dir.root), "--lifeline", str(lifeline))
    options = (*options, "--attempt", str(attempt))
    if run_dir.node:
        options = (*options, "--node", run_dir.node)
    log = run_dir.node_files.log("fork-server")
    if commands.fork_server == FORK_SERVER and not debug:
        process = take_head_start(build_worker_environment(os.environ, threads, numerics), lifeline)
        if process is not None:
            child = Child.adopt(process)
            late = LateOptions(options, str(log.absolute()), str(Path.cwd()))
            child.write_line(msgspec.json.encode(late))
            return child
    # Pass copies, because the server's own standard streams are pipes and a log.
    streams = tuple(os.dup(standard) for standard in (0, 1, 2)) if debug else ()
    if streams:
        options = (*options, "--streams", ",".join(map(str, streams)))
    try:
        return Child(
            (*commands.fork_server, *options),
            log,
            pass_fds=(lifeline, *streams),
            pipe_in=True,
            pipe_out=True,
            threads=threads,
            numerics=numerics,
        )
    finally:
        for stream in streams:
            os.close(stream)
