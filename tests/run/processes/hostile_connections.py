"""Hostile connections to the ports of a run, from a process of another system user where root starts it."""

import contextlib
import itertools
import os
import resource
import signal
import socket
import time
from collections import deque
from collections.abc import Iterator, Sequence
from pathlib import Path

UNPRIVILEGED_USER = 65534
HELD_PER_PORT = 300
AT_ONCE = 10
PAUSE_S = 0.02
NESTED = b"\x91" * 4000 + b"\xc0"


def frame(body: bytes) -> bytes:
    return len(body).to_bytes(4, "little") + bytes(8) + body


TO_A_MESH = (
    b"",
    os.urandom(500),
    frame(b"\x81\xa1x" + NESTED),
    frame(b"\x81\xa1x" + NESTED[-250:]),
    frame(b"\x93\xa5Hello\x07\xc4\x20" + bytes(32)),
    frame(b"\x93\xa5Hello\x07\xc4\x20" + bytes(32))
    + frame(b"\x93\xa5Proof\x93\x01\x02\x03\xc4\x20" + bytes(32)),
    b"\xff" * 12,
    b"\x10\x00",
)
UPGRADE = (
    b"Upgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: "
    + b"A" * 24
)
TO_A_COORDINATOR = (
    b"",
    os.urandom(500),
    b"GET / HTTP/1.1\r\n",
    b"GET / HTTP/1.1\r\n\r\n",
    b"POST /v1/jobs HTTP/1.0\r\nContent-Length: 5\r\n\r\n{",
    b"GET / HTTP/1.1\r\nAuthorization: Bearer a\r\nAuthorization: Bearer b\r\n" + UPGRADE + b"\r\n\r\n",
    b"GET / HTTP/1.1\r\nAuthorization: Bearer \xff\xfe\r\n" + UPGRADE + b"\r\n\r\n",
    b"GET / HTTP/1.1\r\nX: " + b"x" * 100_000,
    b"GET / HTTP/1.1\r\n" + b"X: y\r\n" * 10_000,
)


@contextlib.contextmanager
def flood_with_connections(meshes: Sequence[int], coordinator: int, count: Path) -> Iterator[None]:
    """Connect to these ports without end in another process, which counts the connections in a file.

    Args:
        meshes: ports of the workers.
        coordinator: port of the coordinator.
        count: the file.
    """
    pid = os.fork()
    if pid == 0:
        try:
            _connect_forever(
                [*((port, TO_A_MESH) for port in meshes), (coordinator, TO_A_COORDINATOR)], count
            )
        finally:
            os._exit(1)
    try:
        yield
        assert os.waitpid(pid, os.WNOHANG) == (0, 0), "the process that connects has failed"
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


def _connect_forever(ports: Sequence[tuple[int, Sequence[bytes]]], count: Path) -> None:
    counter = count.open("w")
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(most, 8192), most))
    if os.geteuid() == 0:
        os.setgroups([])
        os.setgid(UNPRIVILEGED_USER)
        os.setuid(UNPRIVILEGED_USER)
    held: deque[socket.socket] = deque()
    for made in itertools.count(1):
        for port, messages in ports:
            for _ in range(AT_ONCE):
                connection = socket.socket()
                connection.setblocking(False)
                connection.connect_ex(("127.0.0.1", port))
                held.append(connection)
                # The connection is not established yet, or the peer has closed it.
                with contextlib.suppress(OSError):
                    connection.send(messages[made % len(messages)])
        while len(held) > HELD_PER_PORT * len(ports):
            held.popleft().close()
        for connection in list(held)[-AT_ONCE * len(ports) * 3 :]:
            with contextlib.suppress(OSError):
                connection.send(b"x")
        counter.seek(0)
        counter.write(str(made * AT_ONCE * len(ports)))
        counter.flush()
        time.sleep(PAUSE_S)  # not a wait: paces the connections


def leave_descriptors(pid: int, free: int) -> None:
    """Let a process open ``free`` more descriptors and no others."""
    taken = {int(entry.name) for entry in Path(f"/proc/{pid}/fd").iterdir()}
    limit = next(itertools.islice((fd for fd in itertools.count() if fd not in taken), free, None))
    _, most = resource.prlimit(pid, resource.RLIMIT_NOFILE)
    resource.prlimit(pid, resource.RLIMIT_NOFILE, (limit, most))
