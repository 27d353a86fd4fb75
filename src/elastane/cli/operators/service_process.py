"""The processes of services: where one listens, its start, and its end. See `elastane.common.services`."""

import contextlib
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import TypeVar

import msgspec

from elastane.common.errors import BadInput, RunFailed
from elastane.common.services import StartFailure

R = TypeVar("R", bound=msgspec.Struct)

GONE_S = 20.0
"""Seconds within which a service ends."""
LAST_PORT = 65535


def start_service(
    module: str, settings: msgspec.Struct, kind: type[R], log: Path, *, companion: int | None
) -> "tuple[subprocess.Popen[bytes], R]":
    """Start a service, wait until it listens, and return its process and its report.

    Its output goes to ``log``.

    Args:
        module: such as ``elastane.cluster.controller``; its last part names the service in errors.
        companion: the process with which the service ends; None: it outlives this command.
    """
    reading, writing = os.pipe()
    try:
        process = _spawn_service(module, log, writing, companion)
    finally:
        os.close(writing)
    assert process.stdin is not None
    # If the service has already ended, the read below notices.
    with contextlib.suppress(BrokenPipeError), process.stdin as settings_pipe:
        settings_pipe.write(msgspec.json.encode(settings))
    try:
        with os.fdopen(reading, "rb") as answer:
            line = answer.readline()
    except BaseException:
        # After Ctrl-C, for example, no command would find the service.
        end_service(process)
        raise
    with contextlib.suppress(msgspec.ValidationError):
        if line:
            return process, msgspec.json.decode(line, type=kind)
    name = f"the {module.rpartition('.')[2]}"
    code = process.wait()
    failure = BadInput if code == BadInput.exit_code else RunFailed
    if line:
        why = msgspec.json.decode(line, type=StartFailure)
        raise failure(f"{name} did not start: {why.what}", means=why.means, do=why.do)
    raise failure(f"{name} did not start: it ended with exit code {code}", do=f"read {log}")


def _spawn_service(module: str, log: Path, ready_fd: int, companion: int | None) -> "subprocess.Popen[bytes]":
    with os.fdopen(os.open(log, os.O_CREAT | os.O_APPEND | os.O_WRONLY, 0o600), "ab") as stream:
        return subprocess.Popen(
            [
                *(sys.executable, "-P", "-m", module),
                f"--ready-fd={ready_fd}",
                *([] if companion is None else [f"--with={companion}"]),
            ],
            stdin=subprocess.PIPE,
            stdout=stream,
            stderr=stream,
            start_new_session=companion != os.getpid(),
            pass_fds=(ready_fd,),
        )


def end_service(process: "subprocess.Popen[bytes]") -> None:
    """End a service that was just started, and wait until its process is gone."""
    process.terminate()
    try:
        process.wait(GONE_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def wait_for_service(process: "subprocess.Popen[bytes]") -> int:
    """Forward signals to a service until it ends, and return its exit code."""

    def forward_signals(number: int, _: object) -> None:
        process.send_signal(number)

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, forward_signals)
    return process.wait()


def parse_listen_address(listen: str) -> tuple[str, int]:
    """Return the host and the port of ``--listen``."""
    host, colon, port = listen.rpartition(":")
    if not colon or not host or not port.isdigit() or int(port) > LAST_PORT:
        raise BadInput(
            f"invalid --listen: {listen!r} is not HOST:PORT", do="write for example 127.0.0.1:7425"
        )
    return host.strip("[]"), int(port)
