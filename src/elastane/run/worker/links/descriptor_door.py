"""The door through which peers on this machine get descriptors of a worker's memory that no path opens.

The descriptor of a GPU's memory is an anonymous inode, which cannot be opened through ``/proc/PID/fd``. So a
thread sends it over a unix socket, to processes of the same user that show the worker's mark. Peers learn the
mark and the name of the socket in their handshake.
"""

import hmac
import os
import secrets
import socket
import struct
import threading
from collections.abc import Mapping
from contextlib import suppress

from elastane.run.worker.links.inherited_descriptors import close_in_children
from elastane.run.worker.links.memory_mark import MARK_BYTES

PATIENCE_S = 5.0
"""A worker that does not answer for this time counts as broken; no other thread of it has to do anything."""
REQUEST_S = 0.5
"""A peer sends its request at once; a stranger that sends none keeps others waiting for this time."""
REQUEST = struct.Struct(f"<{MARK_BYTES}sq")
"""A request: the mark of the worker, and the name of the memory, a number."""
GRANTED, REFUSED = b"\1", b"\0"
CREDENTIALS = struct.Struct("3i")


class DescriptorDoor:
    """The door of one worker.

    Args:
        mark: of this worker.
        descriptors: by name; it may grow.

    Attributes:
        name: the name of the socket.
    """

    def __init__(self, mark: bytes, descriptors: Mapping[int, int]) -> None:
        self._mark, self._descriptors = mark, descriptors
        self.name = secrets.token_hex(16)
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listener.bind(_find_address(self.name))
        self._listener.listen()
        close_in_children(self)
        threading.Thread(target=self._serve, name="elastane-door", daemon=True).start()

    def close_in_child(self) -> None:
        """Close the listener in a forked process, so that peers notice the death of this one."""
        self._listener.close()

    def _serve(self) -> None:
        while True:
            connection, _ = self._listener.accept()
            # One that does not ask, or has died, costs only itself.
            with connection, suppress(OSError):
                connection.settimeout(REQUEST_S)
                self._answer(connection)

    def _answer(self, connection: socket.socket) -> None:
        raw = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, CREDENTIALS.size)
        _, user, _ = CREDENTIALS.unpack(raw)
        if user != os.getuid():
            return
        request = connection.recv(REQUEST.size, socket.MSG_WAITALL)
        if len(request) < REQUEST.size:
            return
        mark, name = REQUEST.unpack(request)
        descriptor = self._descriptors.get(name)
        if descriptor is None or not hmac.compare_digest(mark, self._mark):
            connection.sendall(REFUSED)
        else:
            socket.send_fds(connection, [GRANTED], [descriptor])


def fetch_descriptor(door: str, mark: bytes, name: int) -> int | None:
    """Return a descriptor of the memory that a peer offers by this name; the caller closes it.

    Returns:
        None: the peer offers no such memory.

    Raises:
        ProcessLookupError: the peer has ended.
        TimeoutError: the peer does not answer.
    """
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.settimeout(PATIENCE_S)
        try:
            connection.connect(_find_address(door))
            connection.sendall(REQUEST.pack(mark, name))
            answer, descriptors, _, _ = socket.recv_fds(connection, 1, 1, socket.MSG_CMSG_CLOEXEC)
        except ConnectionError as error:
            raise ProcessLookupError(f"the door of memory {name} is closed: {error}") from error
    if not answer:
        raise ProcessLookupError(f"the door of memory {name} was closed before it answered")
    return descriptors[0] if descriptors else None


def _find_address(name: str) -> str:
    """Return the address of a socket without a file, which ends with its process."""
    return f"\0elastane-{name}"
