"""The store of ``torch.distributed`` for one world, in a process of its own.

Its socket listens from the moment on that its port is chosen, so no other program can take the port before
the script needs it. And it listens on 127.0.0.1 only; a store in rank 0 would listen on every address.
"""

import os
import signal
import socket
from collections.abc import Sequence
from typing import NamedTuple

from elastane.run.nouns.notices import withstand_notices
from elastane.run.worker.descendants import end_with_parent

LOOPBACK = "127.0.0.1"
BACKLOG = 4096


class WorldStore(NamedTuple):
    """The process of a store, and the port at which it listens."""

    pid: int
    port: int


def start_store(private: Sequence[int]) -> WorldStore:
    """Fork a process that serves a store until it is killed.

    Args:
        private: descriptors of this process that the other must not keep.

    Raises:
        OSError: there is no port or no process left.
    """
    server = os.getpid()
    with socket.create_server((LOOPBACK, 0), backlog=BACKLOG) as listening:
        port: int = listening.getsockname()[1]
        pid = os.fork()
        if pid == 0:
            for fd in private:
                os.close(fd)
            detach_process(server)
            _serve_forever(listening.detach(), port)
    return WorldStore(pid, port)


def _serve_forever(listening: int, port: int) -> None:
    from torch.distributed import TCPStore  # type: ignore[attr-defined]

    # The variable keeps the store alive.
    _store = TCPStore(LOOPBACK, port, None, True, wait_for_workers=False, master_listen_fd=listening)
    while True:
        signal.pause()


def detach_process(server: int) -> None:
    """Give a forked process its own session, and an empty input; it withstands notices.

    Args:
        server: the process id of the fork server; this process ends with it.
    """
    os.setsid()
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    withstand_notices()
    end_with_parent(server)
    empty = os.open(os.devnull, os.O_RDONLY)
    os.dup2(empty, 0)
    os.close(empty)
