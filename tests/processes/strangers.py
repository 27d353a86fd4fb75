"""Strangers: processes of another system user, where that is possible, that besiege the ports of a run."""

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

NOBODY = 65534
HELD_PER_PORT = 300
AT_ONCE = 10
BREATH_S = 0.02
DEEP = b"\x91" * 4000 + b"\xc0"


def framed(body: bytes) -> bytes:
    return len(body).to_bytes(4, "little") + bytes(8) + body


TO_A_MESH = (
    b"",
    os.urandom(500),
    framed(b"\x81\xa1x" + DEEP),
    framed(b"\x81\xa1x" + DEEP[-250:]),
    framed(b"\x93\xa5Hello\x07\xc4\x20" + bytes(32)),
    framed(b"\x93\xa5Hello\x07\xc4\x20" + bytes(32))
    + framed(b"\x93\xa5Proof\x93\x01\x02\x03\xc4\x20" + bytes(32)),
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
def besieged(meshes: Sequence[int], coordinator: int, count: Path) -> Iterator[None]:
    """Strangers connect to all of these ports without end; how often is written to ``count``."""
    pid = os.fork()
    if pid == 0:
        try:
            _besiege([*((port, TO_A_MESH) for port in meshes), (coordinator, TO_A_COORDINATOR)], count)
        finally:
            os._exit(1)
    try:
        yield
        assert os.waitpid(pid, os.WNOHANG) == (0, 0), "the strangers have come to grief themselves"
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


def _besiege(ports: Sequence[tuple[int, Sequence[bytes]]], count: Path) -> None:
    counted = count.open("w")
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(most, 8192), most))
    if os.geteuid() == 0:
        os.setgroups([])
        os.setgid(NOBODY)
        os.setuid(NOBODY)
    held: deque[socket.socket] = deque()
    for made in itertools.count(1):
        for port, words in ports:
            for _ in range(AT_ONCE):
                visitor = socket.socket()
                visitor.setblocking(False)
                visitor.connect_ex(("127.0.0.1", port))
                held.append(visitor)
                # Not connected yet, or hung up on.
                with contextlib.suppress(OSError):
                    visitor.send(words[made % len(words)])
        while len(held) > HELD_PER_PORT * len(ports):
            held.popleft().close()
        for visitor in list(held)[-AT_ONCE * len(ports) * 3 :]:
            with contextlib.suppress(OSError):
                visitor.send(b"x")
        counted.seek(0)
        counted.write(str(made * AT_ONCE * len(ports)))
        counted.flush()
        time.sleep(BREATH_S)


def leave_descriptors(pid: int, free: int) -> None:
    """Let a process open so many descriptors more, and no others."""
    taken = {int(entry.name) for entry in Path(f"/proc/{pid}/fd").iterdir()}
    limit = next(itertools.islice((fd for fd in itertools.count() if fd not in taken), free, None))
    _, most = resource.prlimit(pid, resource.RLIMIT_NOFILE)
    resource.prlimit(pid, resource.RLIMIT_NOFILE, (limit, most))
