"""The GPUs of a gang: process 0 locks one for each process, and all processes see all of them."""

import os
from typing import NoReturn

from elastane.run.worker.gangs.seat import Seat
from elastane.run.worker.state.gpu_locks import VISIBLE, find_gpus

END = b"\n"


def assign_gpus(seat: Seat) -> None:
    """Make as many GPUs as the gang has processes visible to this process, or none; without GPUs do nothing.

    Call this before the sockets of the seat are used and before CUDA is initialised. All processes see the
    GPUs in one order, so process i has ``cuda:i``, as under torchrun. The locks end with process 0, with
    which the agent ends the gang.
    """
    if seat.is_head:
        names = find_gpus(seat.processes)
        line = b"-" if names is None else ",".join(names).encode()
        for descriptor in seat.sockets:
            _write(descriptor, line + END)
    else:
        line = _read_line(seat.sockets[0])
    if line != b"-":
        os.environ[VISIBLE] = line.decode()


def _write(descriptor: int, line: bytes) -> None:
    try:
        os.write(descriptor, line)
    except OSError:
        # The process has ended, and the agent ends the whole gang.
        return


def _read_line(descriptor: int) -> bytes:
    """Return the first line from process 0; what follows belongs to the link."""
    line = b""
    while not line.endswith(END):
        if not (byte := os.read(descriptor, 1)):
            _end_with_head()
        line += byte
    return line.removesuffix(END)


def _end_with_head() -> NoReturn:
    # Process 0 has ended before; the agent reports that as the cause.
    raise SystemExit(1)
