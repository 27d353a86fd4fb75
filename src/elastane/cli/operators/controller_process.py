"""The process of this machine's controller: start, record, find and end it."""

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import msgspec

from elastane.cluster.client.context import StartedController, read_running, save_run_as, save_running
from elastane.cluster.client.controller_lock import find_lock_holder
from elastane.cluster.nouns.controller import (
    ControllerReady,
    ControllerSettings,
    ControllerStartFailure,
)
from elastane.common.connections.controller_context import (
    Context,
    read_context,
    read_store_context,
    save_context,
    save_store_context,
)
from elastane.common.errors import BadInput, RunFailed
from elastane.common.home import find_home
from elastane.common.process_identity import open_process, read_start_time

GONE_S = 20.0
"""Seconds within which a controller ends."""


def check_no_controller_runs() -> None:
    """Check that no controller of this home is running.

    Raises:
        BadInput: a controller is running.
    """
    pid, process = find_controller()
    if process is None:
        return
    os.close(process)
    found = _read_last_record()
    at = f"{found.url}, " if found is not None and found.pid == pid else ""
    raise BadInput(
        f"a controller already runs here ({at}process {pid})",
        means="only one controller may assign the devices of this machine; nothing was started",
        do="use that controller (elastane top), or end it first (elastane down)",
    )


def find_controller() -> tuple[int, int | None]:
    """Return the process id and a pidfd of the controller of this home.

    The lock decides, because the saved record may be missing or about an earlier controller.

    Returns:
        The process id is 0 if no controller is known. The pidfd is None if the controller has ended.
    """
    pid = find_lock_holder(find_home())
    start = None if pid is None else read_start_time(pid)
    if pid is not None and start is not None:
        process = open_process(pid, start)
        # Check again: the pidfd now protects the process id against reuse.
        if process is not None and find_lock_holder(find_home()) == pid:
            return pid, process
        if process is not None:
            os.close(process)
    found = _read_last_record()
    return (0, None) if found is None else (found.pid, open_process(found.pid, found.started))


def _read_last_record() -> StartedController | None:
    """Return the saved record of the last controller; None if there is none that can be read."""
    try:
        return read_running()
    except BadInput:
        return None


def start_controller(
    settings: ControllerSettings, log: Path, *, detach: bool
) -> "tuple[subprocess.Popen[bytes], ControllerReady]":
    """Start a controller, wait until it listens, and return its process and its answer.

    Its output goes to ``log``; with ``detach`` it outlives this command.

    Raises:
        BadInput: the controller refused its settings.
        RunFailed: the controller ended before it listened.
    """
    reading, writing = os.pipe()
    try:
        process = _spawn_controller(log, writing, detach=detach)
    finally:
        os.close(writing)
    assert process.stdin is not None
    # If the controller has already ended, the read below notices.
    with contextlib.suppress(BrokenPipeError), process.stdin as settings_pipe:
        settings_pipe.write(msgspec.json.encode(settings))
    try:
        with os.fdopen(reading, "rb") as answer:
            line = answer.readline()
    except BaseException:
        # After Ctrl-C, for example, no command would find the controller.
        end_controller(process)
        raise
    with contextlib.suppress(msgspec.ValidationError):
        if line:
            return process, msgspec.json.decode(line, type=ControllerReady)
    code = process.wait()
    kind = BadInput if code == BadInput.exit_code else RunFailed
    if line:
        why = msgspec.json.decode(line, type=ControllerStartFailure)
        raise kind(f"the controller did not start: {why.what}", means=why.means, do=why.do)
    raise kind(f"the controller did not start: it ended with exit code {code}", do=f"read {log}")


def _spawn_controller(log: Path, ready_fd: int, *, detach: bool) -> "subprocess.Popen[bytes]":
    with os.fdopen(os.open(log, os.O_CREAT | os.O_APPEND | os.O_WRONLY, 0o600), "ab") as stream:
        return subprocess.Popen(
            [
                *(sys.executable, "-P", "-m", "elastane.cluster.controller"),
                f"--ready-fd={ready_fd}",
                *([] if detach else [f"--with={os.getpid()}"]),
            ],
            stdin=subprocess.PIPE,
            stdout=stream,
            stderr=stream,
            start_new_session=detach,
            pass_fds=(ready_fd,),
        )


def record_controller(
    settings: ControllerSettings, process: "subprocess.Popen[bytes]", ready: ControllerReady
) -> None:
    """Save the process of the controller and its address and token, so that commands find it.

    Raises:
        OSError: the home is not writable.
    """
    save_run_as(settings.run_as)
    before, kept = read_running(), read_context()
    if ready.token:
        found = Context(url=ready.url, token=ready.token, certificate=settings.certificate)
        save_context(found)
        save_store_context(ready.store, found)
    elif kept is None or (before is not None and kept.url == before.url):
        # The saved cluster is this machine's controller, perhaps at another address; a login elsewhere stays.
        again = read_store_context(ready.store) or kept
        if again is not None:
            save_context(msgspec.structs.replace(again, url=ready.url, certificate=settings.certificate))
    # Save this last: the address of the previous controller is needed above, also when this is repeated.
    save_running(StartedController(url=ready.url, pid=process.pid, started=read_start_time(process.pid) or 0))


@contextlib.contextmanager
def explain_write_errors(means: str) -> Iterator[None]:
    """Turn a failed write in the home into an error in words; ``means`` is the consequence.

    Raises:
        RunFailed: a write failed.
    """
    try:
        yield
    except OSError as error:
        raise RunFailed(
            f"cannot write in {find_home()}: {error.strerror or error}",
            means=means,
            do="free some space there, or make it writable, then start it again",
        ) from error


def end_controller(process: "subprocess.Popen[bytes]") -> None:
    """End a controller that was just started, and wait until its process is gone."""
    process.terminate()
    try:
        process.wait(GONE_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def wait_for_controller(process: "subprocess.Popen[bytes]") -> int:
    """Forward signals to the controller until it ends, and return its exit code."""

    def forward_signals(number: int, _: object) -> None:
        process.send_signal(number)

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, forward_signals)
    return process.wait()
