"""Proven connections between workers, which carry frames of a message and, optionally, a payload.

Each worker has one connection to every other one, so all notice a death at once. A connection breaks for
good: this worker reports the peer as lost, and neither sends to it nor dials it again. If a peer sends a
message that a worker never sends, it is broken: this worker stops reading from it and reports it as lost.
`elastane.run.worker.links.entrance` has the unproven connections. No message is unpickled.
"""

import contextlib
import os
import selectors
import time
import weakref
from collections.abc import Callable, Iterable

import msgspec

from elastane.common.untrusted_data import Decoder, Malformed
from elastane.run.nouns.machine_address import LOOPBACK_ONLY, MachineAddress
from elastane.run.protocol.messages import AnyPeerMessage
from elastane.run.worker.links.connection import PeerConnection
from elastane.run.worker.links.encryption import Encryption
from elastane.run.worker.links.entrance import Candidate, MeshEntrance
from elastane.run.worker.links.frames import (
    Buffer,
    FrameLimits,
    FrameStream,
    Payload,
    StreamBytes,
    build_frame,
)
from elastane.run.worker.links.handshake import Credentials, Process, ProvenPeer
from elastane.run.worker.links.inherited_descriptors import close_in_children
from elastane.run.worker.links.memory_mark import MemoryMark, has_mark
from elastane.run.worker.links.payload_exchange import PayloadExchange, RemoteMemory
from elastane.run.worker.links.payload_offers import LinkMessage

LIMITS = FrameLimits(message=64 << 20, payload=1 << 40)
"""The limits for a proven peer: no message comes near, and a payload takes memory only as it arrives."""
FRAMES_AT_ONCE = 64
READING_S = 0.001
"""The time between two looks at reads of a peer's memory: nothing announces their end."""

_encode = msgspec.msgpack.Encoder().encode
decode_peer_message: Decoder[AnyPeerMessage] = Decoder(
    AnyPeerMessage, format="msgpack", at_most_bytes=LIMITS.message
)
_decode: Decoder[AnyPeerMessage | LinkMessage] = Decoder(
    AnyPeerMessage | LinkMessage, format="msgpack", at_most_bytes=LIMITS.message
)


class Mesh:
    """All connections of one worker; one thread owns and drives them, except for `wake`.

    Args:
        share_memory: this worker and its peers on the same machine may read each other's memory.
        encryption: encrypts the connections to other machines; None: the run does not.

    Attributes:
        host: the address at which peers reach it.
        port: the port at which peers reach it.
        sums_fd: the descriptor of the sums, for peers; see `Process`.
        values_fd: the descriptor of the values, for peers; see `Process`.
        door: the name of this worker's door; see `Process`.
        device: of this worker; see `Process`.
        remote_memory: reads payloads in the memory of peers that share none; None: payloads are sent.
        peers: the connections to peers; another thread may ask whether there are any.
        streams: the bytes on the connection to each peer so far, including past connections.
    """

    def __init__(
        self,
        worker: int,
        secret: bytes,
        address: MachineAddress = LOOPBACK_ONLY,
        *,
        share_memory: bool = True,
        encryption: Encryption | None = None,
    ) -> None:
        self.worker = worker
        self.remote_memory: RemoteMemory | None = None
        self._exchanges: dict[int, PayloadExchange] = {}
        self._mark, self._share_memory = MemoryMark(), share_memory
        self.sums_fd = self.values_fd = -1
        self.door = self.device = ""
        self._secret = secret
        self._selector = selectors.DefaultSelector()
        self._entrance = MeshEntrance(self._selector, self._build_credentials, address, encryption=encryption)
        self.host, self.port = self._entrance.address
        self._wake_read, self._wake_write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        # Not at the end of the process: another thread may wake a mesh then.
        weakref.finalize(self, _close_pipe, self._wake_read, self._wake_write).atexit = False
        self._selector.register(self._wake_read, selectors.EVENT_READ)
        self.peers: dict[int, PeerConnection] = {}
        self.streams: dict[int, StreamBytes] = {}
        self._queued: dict[int, list[memoryview]] = {}
        self._lost: list[int] = []
        self._unread: list[PeerConnection] = []
        self._gone: set[int] = set()
        self._disowned: list[PeerConnection] = []
        self._addresses: dict[int, tuple[str, int]] = {}
        close_in_children(self)

    def close_in_child(self) -> None:
        """Close the connections in a forked process, which would otherwise keep them open after a death."""
        # Do not unregister sockets: the parent shares the selector.
        self._selector.close()
        self._entrance.close_sockets()
        for connection in list(self.peers.values()):
            connection.close_sockets()
        for disowned in self._disowned:
            disowned.close_sockets()

    def wake(self) -> None:
        """Make `poll` return soon; from any thread."""
        # A full pipe wakes it too.
        with contextlib.suppress(BlockingIOError):
            os.write(self._wake_write, b"\0")

    def get_process(self, peer: int) -> Process | None:
        """Return the process of a connected peer that shares its memory; None: no such peer does."""
        connection = self.peers.get(peer)
        return None if connection is None or not connection.shared else connection.process

    @property
    def mark(self) -> bytes:
        """The mark of this worker, which only its peers know."""
        return self._mark.value

    def _build_credentials(self) -> Credentials:
        mark = self._mark
        process = Process(
            os.getpid(), self.sums_fd, self.values_fd, mark.fd, mark.value, self.door, self.device
        )
        return Credentials(self.worker, self._secret, process, self._can_read)

    def _can_read(self, process: Process) -> bool:
        return self._share_memory and has_mark(process.pid, process.mark_fd, process.mark)

    # -- sending -------------------------------------------------------------------------------------------

    def dial(self, peer: int, host: str, port: int) -> None:
        """Connect to a peer, unless connected or connecting; the worker with the higher number dials."""
        self._addresses[peer] = host, port
        if peer not in self.peers and peer not in self._gone and peer < self.worker:
            self._entrance.dial(peer, (host, port), time.monotonic())

    def send(self, peer: int, message: AnyPeerMessage, payload: Iterable[Buffer] | None = None) -> None:
        """Queue a frame, and send it at once if the connection accepts it; a lost peer gets nothing."""
        if peer in self._gone:
            return
        body, pieces = _encode(message), list(payload or ())
        connection = self.peers.get(peer)
        if connection is None:
            self._queued.setdefault(peer, []).extend(build_frame(body, pieces))
            return
        exchange = self._exchanges.get(peer)
        if exchange is None or not exchange.offer(body, pieces):
            connection.put(build_frame(body, pieces))
        self._flush(connection)

    def disown(self, peer: int) -> None:
        """Report a broken peer as lost, and read nothing more from it.

        Its connection stays open until this process ends: a peer that saw it close would report this worker
        as lost, and the coordinator spares those that report.
        """
        if peer in self.peers:
            self._disown(self.peers[peer])

    def _flush(self, connection: PeerConnection) -> None:
        if connection.dropped:
            return
        try:
            connection.flush()
        except OSError:
            self._drop(connection)
            return
        if connection.is_due:
            self._entrance.dial(connection.peer, self._addresses[connection.peer], time.monotonic())

    # -- receiving -----------------------------------------------------------------------------------------

    def poll(
        self,
        timeout_s: float | None,
        on_message: Callable[[int, AnyPeerMessage, Payload], None],
        on_lost_peer: Callable[[int], None],
    ) -> None:
        """Wait for traffic, a wake-up or the timeout; pass on received messages and lost peers."""
        ready = self._selector.select(self._find_wait_s(timeout_s))
        unread, self._unread = self._unread, []
        for connection in unread:
            self._read(connection, on_message)
        for key, events in ready:
            connection = key.data
            if not isinstance(connection, PeerConnection):
                self._handle(connection)
                continue
            if events & selectors.EVENT_WRITE:
                self._flush(connection)
            # Handling one connection may show that another one is broken.
            if events & selectors.EVENT_READ:
                self._read(connection, on_message)
        if not self._entrance.quiet:
            for peer in self._entrance.handle_due(time.monotonic()):
                if peer in self.peers:
                    self.peers[peer].postpone()
                else:
                    self._lose(peer)
        for peer in [each for each, exchange in self._exchanges.items() if exchange.reading]:
            if peer in self.peers:
                self._pass_on(self.peers[peer], on_message)
        lost_peers, self._lost = self._lost, []
        for peer in lost_peers:
            on_lost_peer(peer)

    def _handle(self, source: Candidate | MeshEntrance | None) -> None:
        """Handle an unproven connection, the listener, or a wake-up."""
        match source:
            case Candidate():
                peer = self._entrance.advance(source, time.monotonic())
                if peer is not None:
                    self._admit(source.stream, peer)
            case MeshEntrance():
                self._entrance.accept(time.monotonic())
            case None:
                with contextlib.suppress(BlockingIOError):
                    os.read(self._wake_read, 4096)

    def _find_wait_s(self, timeout_s: float | None) -> float | None:
        """Return how long `poll` may wait, in seconds; None: without limit."""
        if self._lost or self._unread:
            return 0.0
        if any(exchange.reading for exchange in self._exchanges.values()):
            timeout_s = READING_S if timeout_s is None else min(timeout_s, READING_S)
        if self._entrance.quiet:
            return timeout_s
        due_s = self._entrance.find_due_s()
        if due_s is None:
            return timeout_s
        wait_s = max(0.0, due_s - time.monotonic())
        return wait_s if timeout_s is None else min(timeout_s, wait_s)

    def _admit(self, stream: FrameStream, peer: ProvenPeer) -> None:
        if peer.worker in self._gone:
            # It was lost while new keys were on their way.
            self._selector.unregister(stream.sock)
            stream.sock.close()
            return
        if peer.worker in self.peers:
            # Two workers have one connection, unless this one brings new keys.
            self._selector.unregister(stream.sock)
            try:
                if not self.peers[peer.worker].adopt(stream, peer):
                    stream.sock.close()
            except OSError:
                self._drop(self.peers[peer.worker])
            return
        stream.limits = LIMITS
        connection = PeerConnection(self._selector, stream, peer, dialled=peer.worker < self.worker)
        self.peers[peer.worker] = connection
        self.streams[peer.worker] = stream.bytes
        connection.put(self._queued.pop(peer.worker, []))
        if self.remote_memory is not None and not peer.shared:
            self._exchanges[peer.worker] = PayloadExchange(
                self.remote_memory,
                self.worker,
                peer.worker,
                lambda message, payload: connection.put(build_frame(_encode(message), payload)),
                decode_peer_message,
                stream.bytes,
            )
        self._flush(connection)
        if stream.buffered:
            self._unread.append(connection)

    def _read(
        self, connection: PeerConnection, on_message: Callable[[int, AnyPeerMessage, Payload], None]
    ) -> None:
        """Pass on the messages of a peer that have arrived."""
        exchange = self._exchanges.get(connection.peer)
        # Bounded, so that one busy peer does not starve the others.
        for _ in range(FRAMES_AT_ONCE):
            if connection.dropped:
                return
            try:
                read = connection.read()
                if read is None:
                    continue
                message, payload = None, read[1]
                if exchange is None:
                    message = decode_peer_message(read[0])
                else:
                    exchange.receive(_decode(read[0]), payload)
            except BlockingIOError:
                return
            except (Malformed, MemoryError):
                self._disown(connection)
                return
            except (OSError, EOFError):
                self._drop(connection)
                return
            if message is None:
                self._pass_on(connection, on_message)
            else:
                on_message(connection.peer, message, payload)
        if not connection.dropped and connection.stream.buffered:
            # The selector reports only bytes that arrive, not those that are decrypted already.
            self._unread.append(connection)

    def _pass_on(
        self, connection: PeerConnection, on_message: Callable[[int, AnyPeerMessage, Payload], None]
    ) -> None:
        """Pass on the messages of a peer that are whole with their payloads, and send the answers."""
        for message, payload in self._exchanges[connection.peer].take_complete():
            on_message(connection.peer, message, payload)
            if connection.dropped:
                return
        self._flush(connection)

    def _drop(self, connection: PeerConnection) -> None:
        if not connection.dropped:
            self._forget(connection)
            connection.close_sockets()

    def _disown(self, connection: PeerConnection) -> None:
        if not connection.dropped:
            self._forget(connection)
            self._disowned.append(connection)

    def _forget(self, connection: PeerConnection) -> None:
        connection.dropped = True
        connection.forget()
        del self.peers[connection.peer]
        if (exchange := self._exchanges.pop(connection.peer, None)) is not None:
            exchange.close()
        self._lose(connection.peer)

    def _lose(self, peer: int) -> None:
        """Report a peer once as lost; not if it is connected and only the dial for new keys has failed."""
        if peer in self.peers:
            self.peers[peer].postpone()
            return
        if peer in self._gone:
            return
        self._queued.pop(peer, None)
        self._gone.add(peer)
        self._lost.append(peer)

    def close(self) -> None:
        """Close every connection and the listener."""
        for connection in list(self.peers.values()):
            self._drop(connection)
        for disowned in self._disowned:
            disowned.close_sockets()
        self._entrance.close()


def _close_pipe(*ends: int) -> None:
    for end in ends:
        os.close(end)
