"""A socket between two processes of a gang, which carries whole messages."""

import socket
import struct
import threading
import time
from collections.abc import Callable, Sequence
from typing import TypeVar

import msgspec

from elastane.common.untrusted_data import Decoder, Malformed
from elastane.run.worker.gangs.gang_messages import LARGEST_BYTES, encode_message
from elastane.run.worker.links.inherited_descriptors import close_in_children

CONSEQUENCE_S = 0.5
"""After an error in a collective, how long it may take until the end of the process that caused it shows."""
LOOK_S = 0.01
HEADER = struct.Struct("<Q")
Message = TypeVar("Message")


def has_lost_process(pipes: Sequence["GangPipe"]) -> bool:
    """Return whether one of the other processes has ended, or does so within a moment."""
    limit_s = time.monotonic() + CONSEQUENCE_S
    while not any(pipe.ended.is_set() for pipe in pipes):
        if time.monotonic() > limit_s:
            return False
        time.sleep(LOOK_S)
    return True


class GangPipe:
    """One end of the socket; a thread of its own reads it, and any thread writes.

    Args:
        descriptor: of the socket, which belongs to this object from now on.

    Attributes:
        ended: the other process has ended.
    """

    def __init__(self, descriptor: int) -> None:
        self._socket = socket.socket(fileno=descriptor)
        self._lock = threading.Lock()
        self.ended = threading.Event()
        close_in_children(self)

    def close_in_child(self) -> None:
        """Close the socket in a forked process, so that this one's end is noticed."""
        self._socket.close()

    def send(self, message: msgspec.Struct) -> None:
        """Send a message; if the other process has ended, nothing happens: the agent ends the whole gang."""
        encoded = encode_message(message)
        with self._lock:
            try:
                self._socket.sendall(HEADER.pack(len(encoded)) + encoded)
            except OSError:
                return

    def read(self, decode: Decoder[Message], handle: Callable[[Message], None]) -> threading.Thread:
        """Start a thread that hands every message over, until the other process ends."""
        thread = threading.Thread(target=self._read, args=(decode, handle), name="elastane-gang", daemon=True)
        thread.start()
        return thread

    def _read(self, decode: Decoder[Message], handle: Callable[[Message], None]) -> None:
        while (header := self._receive(HEADER.size)) is not None:
            (length,) = HEADER.unpack(header)
            if length > LARGEST_BYTES:
                raise Malformed(f"a message between processes of a worker has {length} bytes")
            if (encoded := self._receive(length)) is None:
                break
            handle(decode(encoded))
        self.ended.set()

    def _receive(self, length: int) -> bytes | None:
        """Return this many bytes; None: the other process has ended."""
        received = bytearray()
        while len(received) < length:
            try:
                part = self._socket.recv(min(length - len(received), 1 << 20))
            except OSError:
                return None
            if not part:
                return None
            received += part
        return bytes(received)
