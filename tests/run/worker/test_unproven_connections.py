"""Peers of a mesh go on, regardless of the number of strangers that connect and of their messages."""

import contextlib
import itertools
import os
import resource
import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from elastane.common.connections.unproven_connections import AdmissionRules
from elastane.common.untrusted_data import Malformed
from elastane.run.protocol.messages import State, Vote
from elastane.run.worker.links.frames import HEADER, RECEIVE_BYTES
from elastane.run.worker.links.mesh import LIMITS, Mesh, decode_peer_message
from tests.waiting import WAIT_S, wait_until

SECRET = b"secret"


class Pair:
    """Two proven peers in one thread, which send each other votes."""

    def __init__(self) -> None:
        self.meshes = [Mesh(number, SECRET) for number in (0, 1)]
        self.received: list[tuple[int, int]] = []
        self.lost: list[int] = []
        self.rounds = 0
        self.meshes[1].dial(0, self.meshes[0].host, self.meshes[0].port)
        self.exchange_votes()

    def poll(self) -> None:
        for mesh in self.meshes:
            mesh.poll(
                0.001,
                lambda peer, message, payload: self.received.append((peer, message.round)),
                self.lost.append,
            )

    def poll_until(self, done: Callable[[], object], what: str) -> None:
        wait_until(done, what, state=lambda: f"lost: {self.lost}", meanwhile=self.poll)

    def exchange_votes(self) -> None:
        """Send a vote in each direction; fail unless these two arrive, and no other message does."""
        self.rounds += 1
        before = list(self.received)
        for mesh, peer in zip(self.meshes, (1, 0), strict=True):
            mesh.send(peer, Vote(generation=1, round=self.rounds, leaves=()))
        self.poll_until(lambda: len(self.received) >= len(before) + 2, "both votes have arrived")
        assert sorted(self.received[len(before) :]) == [(0, self.rounds), (1, self.rounds)]
        assert self.lost == []

    @property
    def unproven(self) -> int:
        return len(self.meshes[0]._entrance._unproven)

    def close(self) -> None:
        for mesh in self.meshes:
            mesh.close()
            mesh._selector.close()


@pytest.fixture
def pair():
    connected = Pair()
    yield connected
    connected.close()


def connect_stranger(mesh: Mesh) -> socket.socket:
    sock = socket.create_connection((mesh.host, mesh.port), timeout=WAIT_S)
    sock.setblocking(False)
    return sock


def pack_frame(body: bytes) -> bytes:
    return HEADER.pack(len(body), 0) + body


NUMBERS = st.integers(-(1 << 63), (1 << 64) - 1)
VALUES = st.recursive(
    st.one_of(st.none(), NUMBERS, st.binary(max_size=40), st.text(max_size=8), st.floats()),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=4), inner, max_size=4),
    max_leaves=12,
)
BODIES = st.one_of(
    st.binary(max_size=400),
    VALUES.map(msgspec.msgpack.encode),
    st.tuples(st.sampled_from(["Hello", "Proof", "Vote"]), NUMBERS, st.binary(min_size=32, max_size=32)).map(
        msgspec.msgpack.encode
    ),
    st.integers(1, 5000).map(lambda levels: b"\x81\xa1x" + b"\x91" * levels + b"\xc0"),
    st.integers(1, 5000).map(lambda levels: b"\x94\xa5Hello\x07" + b"\x91" * levels + b"\xc0"),
)
DATA = st.one_of(
    BODIES.map(pack_frame),
    st.binary(max_size=100),
    st.builds(HEADER.pack, st.integers(0, (1 << 32) - 1), st.integers(0, (1 << 64) - 1)),
)


def test_peers_go_on_after_any_message_of_a_stranger(pair):
    @settings(derandomize=True, max_examples=200)
    @given(pieces=st.lists(DATA, max_size=4), is_closed=st.booleans())
    def send_messages(pieces, is_closed):
        visitor = connect_stranger(pair.meshes[0])
        try:
            for words in pieces:
                # The mesh may have closed the connection already.
                with contextlib.suppress(ConnectionError, BlockingIOError):
                    visitor.send(words)
            if is_closed:
                visitor.close()
            pair.exchange_votes()
        finally:
            visitor.close()

    send_messages()
    pair.poll_until(lambda: not pair.unproven, "closed connections are forgotten")


@settings(derandomize=True, max_examples=500)
@given(body=BODIES)
def test_a_peers_message_is_a_message_or_malformed(body):
    with contextlib.suppress(Malformed):
        decode_peer_message(body)


def test_half_handshakes_are_limited_in_number_and_time(pair):
    mesh = pair.meshes[0]
    mesh._entrance.rules = lambda: AdmissionRules(
        most=8, deadline_s=1.0, least_s=0.01, descriptor_ceiling=1 << 20
    )
    visitors = []
    for _ in range(100):
        visitors.append(connect_stranger(mesh))
        pair.exchange_votes()
        assert pair.unproven <= 8
    pair.poll_until(lambda: not pair.unproven, "half handshakes are over")
    pair.exchange_votes()
    for visitor in visitors:
        visitor.close()


def test_an_idle_mesh_ends_half_handshakes(pair, monkeypatch):
    """Only the deadline wakes it up."""
    mesh = pair.meshes[0]
    mesh._entrance.rules = lambda: AdmissionRules(
        most=8, deadline_s=0.2, least_s=0.0, descriptor_ceiling=1 << 20
    )
    visitor = connect_stranger(mesh)
    pair.poll_until(lambda: pair.unproven, "the stranger is accepted")
    waker = threading.Timer(WAIT_S, mesh.wake)
    waker.start()
    while pair.unproven:
        mesh.poll(None, lambda *_: None, pair.lost.append)
    assert waker.is_alive(), "only another wake-up ended the wait"
    waker.cancel()
    assert visitor.recv(100) == b""
    visitor.close()


OTHER_THREADS_MAY_FAIL = pytest.mark.filterwarnings(
    "ignore:Exception in thread:pytest.PytestUnhandledThreadExceptionWarning"
)
"""A thread that an earlier test has left, such as that of a connection, may want a descriptor, too."""


@pytest.fixture
def few_descriptors():
    """Return a function that limits the number of descriptors that this process may open."""
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)

    def allow(more: int) -> None:
        open_descriptors = {int(fd) for fd in os.listdir("/proc/self/fd")}  # noqa: PTH208 - descriptors, not paths
        free = (fd for fd in range(limits[1]) if fd not in open_descriptors)
        resource.setrlimit(resource.RLIMIT_NOFILE, (next(itertools.islice(free, more, None)), limits[1]))

    yield allow
    resource.setrlimit(resource.RLIMIT_NOFILE, limits)


@pytest.mark.early
@OTHER_THREADS_MAY_FAIL
def test_a_mesh_without_descriptors_neither_fails_nor_spins(pair, few_descriptors):
    """The strangers are in another process; this one only accepts."""
    mesh = pair.meshes[0]
    with gather_crowd(mesh, 200) as arrive:
        few_descriptors(20)
        arrive()
        for _ in range(50):
            pair.exchange_votes()
            time.sleep(0.01)  # not a wait: strangers arrive meanwhile
        # Then the process itself takes everything, until no stranger can be closed in favour of another one.
        duplicates = []

        def take_descriptors() -> None:
            pair.poll()
            with contextlib.suppress(OSError):
                while True:
                    duplicates.append(os.dup(0))

        wait_until(lambda: not pair.unproven, "no stranger has a descriptor", meanwhile=take_descriptors)
        pair.exchange_votes()
        polls, began_s = 0, time.monotonic()
        while time.monotonic() - began_s < 1.0:
            mesh.poll(1.0, lambda *_: None, pair.lost.append)
            polls += 1
        assert polls < 200, "it spins while it cannot accept"
        for fd in duplicates:
            os.close(fd)
    admit_newcomer(pair)


@OTHER_THREADS_MAY_FAIL
def test_the_last_descriptor_lets_a_peer_in(pair, few_descriptors):
    """The kernel refuses another descriptor even if no connection waits."""
    third = Mesh(2, SECRET)
    few_descriptors(1)  # the peer dials from this process, with the one that the count itself has used
    admit_newcomer(pair, third)


def admit_newcomer(pair: Pair, third: Mesh | None = None) -> None:
    """Connect a third worker."""
    third = third or Mesh(2, SECRET)
    pair.meshes.append(third)
    third.dial(0, pair.meshes[0].host, pair.meshes[0].port)
    pair.poll_until(lambda: 2 in pair.meshes[0].peers and 0 in third.peers, "the peer is connected")
    assert pair.lost == []
    pair.meshes.pop()
    third.close()


def test_a_peer_connects_through_a_crowd_of_strangers(pair):
    """A stranger may displace the peer's own handshake: the peer tries again, and no peer is lost."""
    mesh = pair.meshes[0]
    mesh._entrance.rules = lambda: AdmissionRules(
        most=8, deadline_s=10.0, least_s=0.01, descriptor_ceiling=1 << 20
    )
    with gather_crowd(mesh, 300) as arrive:
        arrive()
        admit_newcomer(pair)


@contextlib.contextmanager
def gather_crowd(mesh: Mesh, strangers: int):
    """Yield a function that makes strangers of another process connect; they send nothing."""
    order_read, order_write = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.read(order_read, 1)
            visitors = [socket.socket() for _ in range(strangers)]
            for visitor in visitors:
                visitor.setblocking(False)
                visitor.connect_ex((mesh.host, mesh.port))
            os.read(order_read, 1)
        finally:
            os._exit(0)
    try:
        yield lambda: os.write(order_write, b"x")
    finally:
        os.write(order_write, b"xx")
        os.waitpid(pid, 0)
        os.close(order_write)
        os.close(order_read)


def accept(door: socket.socket) -> socket.socket | None:
    with contextlib.suppress(TimeoutError):
        return door.accept()[0]
    return None


def test_an_interrupted_handshake_is_begun_again(pair):
    """The first connections to a worker end before the proof, as displaced ones do."""
    third = Mesh(2, SECRET)
    with socket.create_server(("127.0.0.1", 0)) as door:
        third.dial(0, *door.getsockname())
        for _ in range(3):
            door.settimeout(0.01)
            wait_until(
                lambda: accept(door),
                "the worker tries again",
                meanwhile=lambda: third.poll(0.01, lambda *_: None, pair.lost.append),
            ).close()
    assert pair.lost == []
    wait_until(
        lambda: pair.lost,
        "the death of the peer is noticed",
        meanwhile=lambda: third.poll(0.01, lambda *_: None, pair.lost.append),
    )
    assert pair.lost == [0]
    third.close()


@pytest.mark.parametrize("payload_bytes", [512 << 20, LIMITS.payload])
def test_a_peer_that_announces_a_terabyte_costs_no_memory(pair, payload_bytes):
    sender, receiver = pair.meshes[1], pair.meshes[0]
    body = msgspec.msgpack.encode(State(generation=1, committed=1))
    before = read_resident_bytes()
    sock = sender.peers[0].stream.sock
    sock.sendall(HEADER.pack(len(body), payload_bytes) + body + bytes(100))
    for _ in range(20):
        receiver.poll(0.01, lambda *_: None, pair.lost.append)
    assert read_resident_bytes() - before < 64 << 20


def read_resident_bytes() -> int:
    statm = Path("/proc/self/statm").read_text()
    return int(statm.split()[1]) * resource.getpagesize()


def test_a_lost_peer_is_not_dialled_again_and_gets_nothing(pair):
    sender, receiver = pair.meshes[1], pair.meshes[0]
    sender._drop(sender.peers[0])
    pair.poll_until(lambda: sorted(pair.lost) == [0, 1], "each has lost the other")
    sender.dial(0, receiver.host, receiver.port)
    sender.send(0, Vote(generation=1, round=9, leaves=()))
    for _ in range(20):
        pair.poll()
    assert 9 not in [round_ for _, round_ in pair.received]
    assert not sender._queued


def test_large_payloads_arrive_whole(pair):
    data = os.urandom(3 * RECEIVE_BYTES + 17)
    payloads = []
    pair.meshes[1].send(0, State(generation=1, committed=1), [data])

    def poll() -> None:
        pair.meshes[0].poll(0.01, lambda *pieces: payloads.append(bytes(pieces[2])), pair.lost.append)
        pair.meshes[1].poll(0.0, lambda *_: None, pair.lost.append)

    wait_until(lambda: payloads, "the payload has arrived", meanwhile=poll)
    assert payloads == [data]
