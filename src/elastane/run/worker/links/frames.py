"""Frames over one non-blocking socket: each has a message and, optionally, a payload of raw bytes."""

import socket
import struct
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from elastane.common.untrusted_data import Malformed
from elastane.run.worker.links.encryption import EncryptedSocket

HEADER = struct.Struct("<IQ")
"""The header of a frame: the length of the message and the length of the payload."""
RECEIVE_BYTES = 1 << 20
SEND_PARTS = 64
Buffer: TypeAlias = bytes | bytearray | memoryview
Payload: TypeAlias = memoryview
"""The bytes of a payload; they may be changed."""


@dataclass(frozen=True, slots=True)
class FrameLimits:
    """The sizes of the largest accepted message and payload, in bytes."""

    message: int
    payload: int


@dataclass(slots=True)
class StreamBytes:
    """The bytes on one connection so far, as they are before encryption; its thread alone changes them."""

    sent: int = 0
    received: int = 0


class FrameStream:
    """Reads and writes whole frames.

    Args:
        sock: a non-blocking socket, connected or connecting.
        limits: the limits of received frames; they may change between two frames.

    Attributes:
        bytes: what was sent and received so far.
    """

    def __init__(self, sock: socket.socket, limits: FrameLimits) -> None:
        self.sock = sock
        self.limits = limits
        self.bytes = StreamBytes()
        self._outgoing: deque[memoryview] = deque()
        self._header = bytearray()
        self._message: bytearray | None = None
        self._payload: Payload = memoryview(b"")
        self._filled = 0

    @property
    def buffered(self) -> bool:
        """Decrypted bytes wait in this process, which the selector does not see."""
        return isinstance(self.sock, EncryptedSocket) and self.sock.pending() > 0

    def put(self, parts: Iterable[memoryview]) -> None:
        """Queue parts of frames; `flush` sends them."""
        self._outgoing.extend(parts)

    def flush(self) -> bool:
        """Send as much as the socket accepts now; return whether everything is sent.

        Raises:
            OSError: the connection is broken.
        """
        outgoing = self._outgoing
        try:
            while outgoing:
                sent = self.sock.sendmsg(
                    outgoing if len(outgoing) <= SEND_PARTS else [*outgoing][:SEND_PARTS]
                )
                self.bytes.sent += sent
                while sent:
                    first = outgoing[0]
                    if sent < first.nbytes:
                        outgoing[0] = first[sent:]
                        break
                    sent -= first.nbytes
                    outgoing.popleft()
                while outgoing and not outgoing[0].nbytes:
                    outgoing.popleft()
        except BlockingIOError:
            return False
        return True

    def read(self) -> tuple[bytearray, Payload] | None:
        """Return the message and payload of the next frame; None: only a part of the header has arrived.

        Raises:
            BlockingIOError: the rest of the frame has not arrived yet.
            EOFError: the other side has closed the connection.
            Malformed: the frame exceeds the limits, or does not fit into memory.
            OSError: the connection is broken.
        """
        if self._message is None and not self._read_header():
            return None
        message, payload = self._message, self._payload
        assert message is not None, "a header was read"
        total = len(message) + len(payload)
        while self._filled < total:
            if self._filled < len(message):
                target = memoryview(message)[self._filled :]
            else:
                target = payload[self._filled - len(message) :]
            count = self.sock.recv_into(target[:RECEIVE_BYTES])
            if count == 0:
                raise EOFError("closed in the middle of a frame")
            self._filled += count
            self.bytes.received += count
        self._message, self._payload = None, memoryview(b"")
        return message, payload

    def _read_header(self) -> bool:
        data = self.sock.recv(HEADER.size - len(self._header))
        if not data:
            raise EOFError("closed")
        self._header += data
        self.bytes.received += len(data)
        if len(self._header) < HEADER.size:
            return False
        message, payload = HEADER.unpack(self._header)
        self._header = bytearray()
        if message > self.limits.message or payload > self.limits.payload:
            sizes = f"a message of {message} bytes and a payload of {payload} bytes"
            raise Malformed(
                f"a frame with {sizes}; at most {self.limits.message} and {self.limits.payload} are allowed"
            )
        self._payload = allocate_payload(payload)
        self._message = bytearray(message)
        self._filled = 0
        return True


def build_frame(body: bytes, payload: Iterable[Buffer] = ()) -> list[memoryview]:
    """Return the parts of a frame, for `FrameStream.put`, without copying the payload."""
    views = [memoryview(part).cast("B") for part in payload]
    length = sum(view.nbytes for view in views)
    return [memoryview(HEADER.pack(len(body), length) + body), *views]


def allocate_payload(payload_bytes: int) -> Payload:
    """Return memory for a payload, with arbitrary contents; pages are taken only as bytes arrive.

    So a header that announces a terabyte costs nothing, or the system refuses the reservation. Zeroes would
    cost as much as receiving the bytes.
    """
    try:
        return memoryview(np.empty(payload_bytes, np.uint8))  # type: ignore[arg-type]
    except MemoryError as error:
        raise Malformed(f"a payload of {payload_bytes} bytes, more than there is memory") from error
