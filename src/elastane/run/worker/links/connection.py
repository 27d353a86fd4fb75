"""A proven connection to a peer, which gets new keys in time: it goes on in a second one.

OpenSSL never renews the keys of a connection by itself, and Python cannot ask it to. RFC 8446 (section 5.5)
advises at most 388 GB under one key of AES-GCM. So the dialler dials again after at most `RENEW_BYTES`, and
the new connection is encrypted and proven like any other. Then both sides move to it, between two frames::

    acceptor  -> MARK, and sends on the new connection from now on
    dialler   -> MARK, sends on the new connection from now on, and reads there
    acceptor  closes the old connection, and reads the new one

The dialler is the first to have proven the other side, so it has the new connection before a mark can come.
A mark is an empty frame, in the old connection, so nothing is lost or out of order, and an attacker that cuts
the old connection earlier is noticed.
"""

import secrets
import selectors

from elastane.common.untrusted_data import Malformed
from elastane.run.worker.links.encryption import EncryptedSocket
from elastane.run.worker.links.frames import FrameStream, Payload, build_frame
from elastane.run.worker.links.handshake import ProvenPeer

RENEW_BYTES = 1 << 36
"""The most that is sent or received with the same keys: a sixth of the limit, which counts whole records."""
POSTPONED_BYTES = RENEW_BYTES >> 4
"""Between two attempts to connect anew."""


class PeerConnection:
    """A proven connection; the mesh drives it.

    Args:
        selector: of the mesh; the data of the keys is this object.
        stream: to the peer; it is registered.
        peer: has proven itself.
        dialled: this worker has dialled the peer.

    Attributes:
        stream: from which this worker reads.
        dropped: the mesh has given it up.
    """

    def __init__(
        self, selector: selectors.BaseSelector, stream: FrameStream, peer: ProvenPeer, *, dialled: bool
    ) -> None:
        self.stream = stream
        self.peer, self.process, self.shared = peer.worker, peer.process, peer.shared
        self.dropped = False
        self._selector, self._dialled = selector, dialled
        self._outgoing = stream
        # The stream that a dialler has ready until the peer's mark comes.
        self._next: FrameStream | None = None
        # The streams in use, older ones first, with the events for which they are registered.
        self._events = {stream: selectors.EVENT_READ}
        selector.modify(stream.sock, selectors.EVENT_READ, self)
        self._set_renewal()

    @property
    def is_due(self) -> bool:
        """This worker should dial the peer again, for new keys."""
        size = self.stream.bytes
        return (
            max(size.sent, size.received) >= self._renew_at
            and self._dialled
            and isinstance(self.stream.sock, EncryptedSocket)
            and len(self._events) == 1
        )

    def postpone(self) -> None:
        """Try again later: the peer could not be dialled, though this connection works."""
        self._renew_at += POSTPONED_BYTES

    def adopt(self, stream: FrameStream, peer: ProvenPeer) -> bool:
        """Go on in a second connection, which is not registered; return False if it is to be refused.

        Raises:
            OSError: the connection is broken.
        """
        encrypted = isinstance(stream.sock, EncryptedSocket) and isinstance(self.stream.sock, EncryptedSocket)
        if not encrypted or peer.process != self.process or len(self._events) > 1:
            return False
        stream.limits, stream.bytes = self.stream.limits, self.stream.bytes
        if self._dialled:
            if self._next is not None:
                # The peer has not moved for so long, so it does not have that one.
                self._next.sock.close()
            self._next = stream
            self._set_renewal()
        else:
            self._move_to(stream)
            self.flush()
        return True

    def put(self, parts: list[memoryview]) -> None:
        """Queue parts of frames; `flush` sends them."""
        self._outgoing.put(parts)

    def flush(self) -> None:
        """Send as much as the peer accepts now.

        Raises:
            OSError: the connection is broken.
        """
        for stream in list(self._events):
            unsent = not stream.flush()
            if not unsent and stream is not self.stream and stream is not self._outgoing:
                self._retire(stream)
                continue
            read = selectors.EVENT_READ if stream is self.stream else 0
            self._watch(stream, read | (selectors.EVENT_WRITE if unsent else 0))

    def read(self) -> tuple[bytearray, Payload] | None:
        """Return the next message and its payload; None: a mark, or a part of a header.

        Raises:
            BlockingIOError, EOFError, Malformed, OSError: as `FrameStream.read`.
        """
        read = self.stream.read()
        if read is None or read[0]:
            return read
        if self._next is not None:
            # The old connection stays until its mark is sent.
            self.stream, self._next = self._next, None
            self._move_to(self.stream)
        elif self._outgoing is not self.stream:
            self._retire(self.stream)
            self.stream = self._outgoing
        else:
            raise Malformed("a mark without a new connection")
        self.flush()
        return None

    def forget(self) -> None:
        """Unregister all streams; they stay open."""
        for stream in self._events:
            self._watch(stream, 0)

    def close_sockets(self) -> None:
        """Close the descriptors, but leave the selector."""
        for stream in (*self._events, *(() if self._next is None else (self._next,))):
            stream.sock.close()

    def _move_to(self, stream: FrameStream) -> None:
        """Send on another stream from now on, after the mark on the present one."""
        self._outgoing.put(build_frame(b""))
        self._outgoing = stream
        self._events[stream] = 0
        self._set_renewal()

    def _set_renewal(self) -> None:
        """Plan the next renewal; at random, because a connection takes two descriptors meanwhile."""
        size = self.stream.bytes
        self._renew_at = max(size.sent, size.received) + RENEW_BYTES - secrets.randbelow(RENEW_BYTES // 2)

    def _retire(self, stream: FrameStream) -> None:
        self._watch(stream, 0)
        del self._events[stream]
        stream.sock.close()

    def _watch(self, stream: FrameStream, events: int) -> None:
        before, self._events[stream] = self._events[stream], events
        if before and events:
            self._selector.modify(stream.sock, events, self)
        elif before:
            self._selector.unregister(stream.sock)
        elif events:
            self._selector.register(stream.sock, events, self)
