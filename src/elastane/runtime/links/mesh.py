"""Authenticated connections between workers: frames of a message and, sometimes, a payload of raw bytes.

A connection that breaks is a death noticed: each worker has one to every other, so all notice at once. Both
sides prove that they know the run's secret (HMAC over the other's nonce) before anything else is read.
Nothing received is unpickled.
"""

import contextlib
import hmac
import os
import selectors
import socket
import struct
from collections import deque
from collections.abc import Callable, Iterator
from typing import TypeAlias

import msgspec

from elastane.protocol.mesh import AnyPeerMessage
from elastane.runtime.links.forked import close_in_children

HEADER = struct.Struct("<IQ")
NONCE_BYTES = 32
HELLO_LIMIT = 4096
# A frame of more bytes is refused: no message of ours comes near, and lengths must not exhaust memory.
MESSAGE_LIMIT = 64 << 20
RECEIVE = 1 << 20
Buffer: TypeAlias = bytes | bytearray | memoryview

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(AnyPeerMessage).decode


class Hello(msgspec.Struct, frozen=True):
    """First and second frame of a connection, from both sides."""

    worker: int
    pid: int
    sums: int
    values: int
    nonce: bytes
    proof: bytes = b""


_decode_hello = msgspec.msgpack.Decoder(Hello).decode


class _Connection:
    def __init__(self, sock: socket.socket, peer: int | None) -> None:
        self.sock = sock
        self.peer = peer
        self.dialled = peer is not None
        self.nonce = os.urandom(NONCE_BYTES)
        self.hello: Hello | None = None
        self.proven = False
        self.outgoing: deque[memoryview] = deque()
        self.header = bytearray()
        self.message: bytearray | None = None
        self.payload: bytearray | None = None
        self.filled = 0
        self.lengths = (0, 0)
        self.dropped = False


class Mesh:
    """All connections of one worker; owned and driven by one thread, but for `wake`.

    Args:
        worker: own number.
        secret: of the run.
        host: address to listen on.
    """

    def __init__(self, worker: int, secret: bytes, host: str = "127.0.0.1") -> None:
        self.worker = worker
        self._secret = secret
        self._selector = selectors.DefaultSelector()
        self._listener = socket.create_server((host, 0))
        self._listener.setblocking(False)
        self.host, self.port = self._listener.getsockname()[:2]
        self._selector.register(self._listener, selectors.EVENT_READ)
        self._wake_read, self._wake_write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._selector.register(self._wake_read, selectors.EVENT_READ)
        self._peers: dict[int, _Connection] = {}
        self._waiting: dict[int, list[memoryview]] = {}
        self._lost: list[int] = []
        self.sums_fd = self.values_fd = -1
        close_in_children(self)

    def close_in_child(self) -> None:
        """A forked process must not keep the connections of this one open."""
        # Without unregistering: what selects is shared with the parent.
        self._selector.close()
        self._listener.close()
        for connection in list(self._peers.values()):
            connection.sock.close()

    def wake(self) -> None:
        """Make `poll` return soon; from any thread."""
        # A full pipe is full of reasons to wake up already.
        with contextlib.suppress(BlockingIOError):
            os.write(self._wake_write, b"\0")

    def arenas(self, peer: int) -> tuple[int, int, int]:
        """``(pid, fd of its sums, fd of its values)``."""
        hello = self._peers[peer].hello
        assert hello is not None, "a proven connection has said hello"  # noqa: S101
        return hello.pid, hello.sums, hello.values

    # -- sending -------------------------------------------------------------------------------------------

    def dial(self, peer: int, host: str, port: int) -> None:
        """Connect to a peer unless that is done or under way; the higher number dials."""
        if peer in self._peers or peer >= self.worker:
            return
        sock = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        connection = _Connection(sock, peer)
        try:
            # On loopback, and within a rack, this takes well under a millisecond.
            sock.settimeout(5.0)
            sock.connect((host, port))
        except OSError:
            sock.close()
            self._lost.append(peer)
            return
        self._adopt(connection)
        self._peers[peer] = connection
        self._say_hello(connection)

    def send(self, peer: int, message: AnyPeerMessage, payload: list[Buffer] | None = None) -> None:
        """Queue a frame; it leaves at once if the connection can take it."""
        body = _encode(message)
        views = [memoryview(part).cast("B") for part in payload or []]
        length = sum(view.nbytes for view in views)
        frame = [memoryview(HEADER.pack(len(body), length) + body), *views]
        connection = self._peers.get(peer)
        if connection is None or not connection.proven:
            self._waiting.setdefault(peer, []).extend(frame)
            return
        connection.outgoing.extend(frame)
        self._flush(connection)

    def _adopt(self, connection: _Connection) -> None:
        connection.sock.setblocking(False)
        connection.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._selector.register(connection.sock, selectors.EVENT_READ, connection)

    def _flush(self, connection: _Connection) -> None:
        if connection.dropped:
            return
        try:
            while connection.outgoing:
                sent = connection.sock.sendmsg(list(connection.outgoing)[:64])
                while sent:
                    first = connection.outgoing[0]
                    if sent < first.nbytes:
                        connection.outgoing[0] = first[sent:]
                        break
                    sent -= first.nbytes
                    connection.outgoing.popleft()
                while connection.outgoing and not connection.outgoing[0].nbytes:
                    connection.outgoing.popleft()
        except BlockingIOError:
            self._selector.modify(connection.sock, selectors.EVENT_READ | selectors.EVENT_WRITE, connection)
            return
        except OSError:
            self._drop(connection)
            return
        self._selector.modify(connection.sock, selectors.EVENT_READ, connection)

    # -- receiving -----------------------------------------------------------------------------------------

    def poll(
        self,
        timeout_s: float | None,
        received: Callable[[int, AnyPeerMessage, bytearray], None],
        lost: Callable[[int], None],
    ) -> None:
        """Wait for traffic, a wake-up or the timeout, and hand over what came."""
        if self._lost:
            timeout_s = 0
        for key, events in self._selector.select(timeout_s):
            if key.fileobj is self._listener:
                self._accept()
            elif key.data is None:
                with contextlib.suppress(BlockingIOError):
                    os.read(self._wake_read, 4096)
            else:
                if events & selectors.EVENT_WRITE:
                    self._flush(key.data)
                # Whatever is done about one connection may show that another one is broken.
                if events & selectors.EVENT_READ:
                    for peer, message, payload in self._read(key.data):
                        received(peer, message, payload)
        gone, self._lost = self._lost, []
        for peer in gone:
            lost(peer)

    def _accept(self) -> None:
        sock, _ = self._listener.accept()
        connection = _Connection(sock, None)
        self._adopt(connection)
        self._say_hello(connection)

    def _read(self, connection: _Connection) -> Iterator[tuple[int, AnyPeerMessage, bytearray]]:
        # Bounded, so that one busy peer does not starve the others.
        for _ in range(64):
            if connection.dropped:
                return
            try:
                frame = self._read_frame(connection)
            except BlockingIOError:
                return
            except (OSError, EOFError, msgspec.DecodeError):
                self._drop(connection)
                return
            if frame is None:
                continue
            message, payload = frame
            if not connection.proven:
                if not self._shake_hands(connection, message):
                    self._drop(connection)
                    return
            elif connection.peer is not None:
                try:
                    decoded = _decode(message)
                except msgspec.DecodeError:
                    self._drop(connection)
                    return
                yield connection.peer, decoded, payload

    def _read_frame(self, connection: _Connection) -> tuple[bytearray, bytearray] | None:
        """One step of reading a frame; the whole frame once it is there."""
        sock = connection.sock
        if connection.message is None:
            data = sock.recv(HEADER.size - len(connection.header))
            if not data:
                raise EOFError
            connection.header += data
            if len(connection.header) < HEADER.size:
                return None
            connection.lengths = HEADER.unpack(connection.header)
            limit = (MESSAGE_LIMIT, 1 << 40) if connection.proven else (HELLO_LIMIT, 0)
            if connection.lengths[0] > limit[0] or connection.lengths[1] > limit[1]:
                raise EOFError
            connection.header = bytearray()
            connection.message = bytearray(connection.lengths[0])
            connection.payload = bytearray(connection.lengths[1])
            connection.filled = 0
        message, payload = connection.message, connection.payload
        assert payload is not None, "made together with the message"  # noqa: S101
        total = len(message) + len(payload)
        while connection.filled < total:
            if connection.filled < len(message):
                target = memoryview(message)[connection.filled :]
            else:
                target = memoryview(payload)[connection.filled - len(message) :]
            count = sock.recv_into(target[:RECEIVE])
            if count == 0:
                raise EOFError
            connection.filled += count
        connection.message = connection.payload = None
        return message, payload

    # -- who is there --------------------------------------------------------------------------------------

    def _proof(self, role: bytes, nonce: bytes, hello: Hello) -> bytes:
        said = b"%s %d %d %d %d " % (role, hello.worker, hello.pid, hello.sums, hello.values)
        return hmac.digest(self._secret, said + nonce, "sha256")

    def _say_hello(self, connection: _Connection) -> None:
        theirs = connection.hello.nonce if connection.hello else b""
        mine = Hello(self.worker, os.getpid(), self.sums_fd, self.values_fd, connection.nonce)
        role = b"dial" if connection.dialled else b"accept"
        proof = self._proof(role, theirs, mine) if theirs else b""
        body = _encode(msgspec.structs.replace(mine, proof=proof))
        connection.outgoing.append(memoryview(HEADER.pack(len(body), 0) + body))
        self._flush(connection)

    def _shake_hands(self, connection: _Connection, message: bytearray) -> bool:
        try:
            hello = _decode_hello(message)
        except msgspec.DecodeError:
            return False
        if connection.hello is None:
            if len(hello.nonce) != NONCE_BYTES or hello.worker == self.worker:
                return False
            if connection.dialled and hello.worker != connection.peer:
                return False
            connection.hello = hello
            self._say_hello(connection)
            return True
        role = b"accept" if connection.dialled else b"dial"
        first = connection.hello
        same = (hello.worker, hello.pid, hello.sums, hello.values)
        if same != (first.worker, first.pid, first.sums, first.values):
            return False
        if not hmac.compare_digest(hello.proof, self._proof(role, connection.nonce, hello)):
            return False
        connection.proven = True
        connection.peer = hello.worker
        self._peers[hello.worker] = connection
        connection.outgoing.extend(self._waiting.pop(hello.worker, []))
        self._flush(connection)
        return True

    def _drop(self, connection: _Connection) -> None:
        if connection.dropped:
            return
        connection.dropped = True
        self._selector.unregister(connection.sock)
        connection.sock.close()
        peer = connection.peer
        if peer is not None and self._peers.get(peer) is connection:
            del self._peers[peer]
            self._waiting.pop(peer, None)
            self._lost.append(peer)

    def close(self) -> None:
        """Hang up everywhere."""
        for connection in list(self._peers.values()):
            self._drop(connection)
        self._selector.unregister(self._listener)
        self._listener.close()
