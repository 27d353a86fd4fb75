"""Connections between workers: messages without the secret, or without a meaning, are not received."""

import os
import pickle
import socket
import time

import msgspec
import pytest

from elastane.run.protocol.messages import Fetch, State, Vote
from elastane.run.worker.links import entrance, handshake
from elastane.run.worker.links.frames import HEADER
from elastane.run.worker.links.handshake import NONCE_BYTES, Hello, Process, Proof
from elastane.run.worker.links.memory_mark import MARK_BYTES, MemoryMark, has_mark
from elastane.run.worker.links.mesh import LIMITS, Mesh
from tests.waiting import wait_until

from .polled_meshes import PolledMeshes

SECRET = b"secret"


class Ends(PolledMeshes):
    """Meshes that this thread drives in turn, and the messages that each one has received."""

    def __init__(self, *meshes: Mesh) -> None:
        self.meshes = meshes
        self.received: list[tuple[int, int, object, bytes]] = []
        self.lost: list[tuple[int, int]] = []

    def poll(self) -> None:
        for mesh in self.meshes:
            mesh.poll(
                0.01,
                lambda peer, message, payload, me=mesh.worker: self.received.append(
                    (me, peer, message, bytes(payload))
                ),
                lambda peer, me=mesh.worker: self.lost.append((me, peer)),
            )


@pytest.fixture
def meshes():
    meshes_made = []

    def make(*secrets: bytes) -> list[Mesh]:
        meshes_made.extend(Mesh(number, secret) for number, secret in enumerate(secrets))
        return meshes_made

    yield make
    for mesh in meshes_made:
        mesh.close()


def test_bytes_are_counted_at_both_ends(meshes) -> None:
    first, second = meshes(SECRET, SECRET)
    ends = connect_meshes(first, second)
    ends.poll_until(lambda: 0 in second.streams and 1 in first.streams)
    before = second.streams[0].sent, first.streams[1].received
    second.send(0, State(generation=1, committed=1), [bytes(3 << 20)])
    ends.poll_until(lambda: ends.received)
    sent, received = second.streams[0].sent - before[0], first.streams[1].received - before[1]
    assert sent == received
    assert 3 << 20 < sent < (3 << 20) + 200


def connect_meshes(first: Mesh, second: Mesh) -> Ends:
    second.dial(first.worker, first.host, first.port)
    return Ends(first, second)


def build_vote(round_: int = 1) -> Vote:
    return Vote(generation=1, round=round_, leaves=(), norms={0: (0.5,)})


def test_a_peer_that_never_answers_is_lost(meshes, monkeypatch):
    monkeypatch.setattr(entrance, "UNREACHABLE_S", 0.3)
    first, second = meshes(SECRET, SECRET)
    with socket.create_server(("127.0.0.1", 0), backlog=0) as silent, socket.socket() as waiting:
        # The system drops each further request while one connection waits, as a firewall would.
        waiting.connect(silent.getsockname())
        began_s = time.monotonic()
        second.dial(0, *silent.getsockname())
        ends = Ends(first, second)
        ends.poll_until(lambda: ends.lost)
        assert ends.lost == [(1, 0)]
        assert time.monotonic() - began_s >= 0.3


def test_messages_and_payloads_arrive_whole_and_in_order(meshes):
    first, second = meshes(SECRET, SECRET)
    ends = connect_meshes(first, second)
    large = os.urandom(5 << 20)
    second.send(0, build_vote(1))
    second.send(0, State(generation=1, committed=1), [large, memoryview(b"tail")])
    second.send(0, build_vote(2))
    first.send(1, Fetch(generation=1, committed=1, values=(1, 2)))
    ends.poll_until(lambda: len(ends.received) == 4)
    assert [(message, payload) for worker, _, message, payload in ends.received if worker == 0] == [
        (build_vote(1), b""),
        (State(generation=1, committed=1), large + b"tail"),
        (build_vote(2), b""),
    ]


def test_messages_sent_before_the_connection_wait_for_it(meshes):
    first, second = meshes(SECRET, SECRET)
    first.send(1, build_vote())
    ends = connect_meshes(first, second)
    ends.poll_until(lambda: ends.received)
    assert ends.received == [(1, 0, build_vote(), b"")]


def test_workers_of_one_machine_share_memory_unless_one_of_them_must_not(meshes):
    first, second = meshes(SECRET, SECRET)
    ends = connect_meshes(first, second)
    second.send(0, build_vote())
    ends.poll_until(lambda: ends.received)
    for process in (second.get_process(0), first.get_process(1)):
        assert (process.pid, process.sums, process.values) == (os.getpid(), -1, -1)
    assert first.get_process(2) is None
    aloof = Mesh(2, SECRET, share_memory=False)
    ends.meshes = (first, aloof)
    aloof.dial(0, first.host, first.port)
    aloof.send(0, build_vote(2))
    ends.poll_until(lambda: len(ends.received) == 2)
    assert first.get_process(2) is None
    assert aloof.get_process(0) is None
    aloof.close()


def test_a_mark_is_found_in_its_own_descriptor_only():
    mark, other = MemoryMark(), MemoryMark()
    pid = os.getpid()
    assert has_mark(pid, mark.fd, mark.value)
    assert not has_mark(pid, other.fd, mark.value)
    assert not has_mark(pid, 1 << 20, mark.value)
    assert not has_mark(1 << 30, mark.fd, mark.value)
    # Without a writer, to open a pipe would wait for one.
    read, write = os.pipe()
    os.close(write)
    assert not has_mark(pid, read, mark.value)
    os.close(read)


def test_both_sides_notice_a_broken_connection(meshes):
    first, second = meshes(SECRET, SECRET)
    ends = connect_meshes(first, second)
    second.send(0, build_vote())
    ends.poll_until(lambda: ends.received)
    second._drop(second.peers[0])
    ends.poll_until(lambda: len(ends.lost) == 2)
    assert sorted(ends.lost) == [(0, 1), (1, 0)]


def test_a_peer_that_dies_during_an_answer_is_lost_once(meshes):
    first, second = meshes(SECRET, SECRET)
    ends = connect_meshes(first, second)
    second.send(0, build_vote(1))
    ends.poll_until(lambda: ends.received)
    second.send(0, build_vote(2))
    second.send(0, build_vote(3))
    first.send(1, build_vote(4))  # never read, so later messages are answered with a reset
    second._drop(second.peers[0])

    def answer(peer, message, payload):
        ends.received.append((0, peer, message, bytes(payload)))
        first.send(1, build_vote(5))
        time.sleep(0.05)  # not a wait: the reset arrives meanwhile, or the test is weaker
        first.send(1, build_vote(6))

    lost = []
    wait_until(lambda: lost, "the peer is lost", meanwhile=lambda: first.poll(0.01, answer, lost.append))
    first.poll(0.01, answer, lost.append)
    assert lost == [1]


def test_a_peer_that_does_not_listen_is_lost_at_once(meshes):
    (mesh,) = meshes(SECRET)
    mesh.worker = 1
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    mesh.dial(0, "127.0.0.1", port)
    ends = Ends(mesh)
    ends.poll_until(lambda: ends.lost)
    assert ends.lost == [(1, 0)]


def test_a_wrong_secret_is_refused_and_the_peer_is_lost_after_a_while(meshes, monkeypatch):
    monkeypatch.setattr(entrance, "PATIENCE_S", 0.3)
    first, second = meshes(SECRET, b"guess")
    ends = connect_meshes(first, second)
    second.send(0, build_vote())
    first.send(1, build_vote())
    ends.poll_until(lambda: ends.lost)
    assert ends.lost == [(1, 0)]
    assert ends.received == []
    assert not first.peers
    assert not second.peers


# -- strangers ---------------------------------------------------------------------------------------------


class Stranger:
    """A plain socket to a mesh."""

    def __init__(self, mesh: Mesh) -> None:
        self.ends = Ends(mesh)
        self.socket = socket.create_connection((mesh.host, mesh.port))
        self.socket.setblocking(False)
        self.received = b""

    def send(self, data: bytes) -> None:
        self.socket.sendall(data)

    def is_closed(self) -> bool:
        try:
            data = self.socket.recv(1 << 16)
        except BlockingIOError:
            return False
        except ConnectionResetError:
            return True
        self.received += data
        return not data


@pytest.fixture
def stranger(meshes):
    (mesh,) = meshes(SECRET)
    visitor = Stranger(mesh)
    yield visitor
    visitor.socket.close()


def pack_frame(body: bytes, payload: bytes = b"") -> bytes:
    return HEADER.pack(len(body), len(payload)) + body + payload


def pack_hello(worker: int = 7, *, nonce: bytes = bytes(NONCE_BYTES)) -> bytes:
    return pack_frame(msgspec.msgpack.encode(Hello(worker, nonce)))


def pack_proof(proof: bytes = bytes(32)) -> bytes:
    return pack_frame(msgspec.msgpack.encode(Proof(Process(1, 2, 3, 4, bytes(MARK_BYTES)), False, proof)))


class Trap:
    def __reduce__(self):
        return os.abort, ()


DEEP = b"\x91" * 5000 + b"\xc0"


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(os.urandom(4096), id="noise"),
        pytest.param(b"GET / HTTP/1.1\r\n\r\n", id="http"),
        pytest.param(pack_frame(b""), id="nothing"),
        pytest.param(pack_frame(b"\xc1not msgpack"), id="no message"),
        pytest.param(pack_frame(pickle.dumps(Trap())), id="a pickle"),
        pytest.param(pack_frame(DEEP), id="nested a thousand levels deep"),
        pytest.param(pack_frame(b"\x81\xa1x" + DEEP), id="an unknown field, nested as deep"),
        pytest.param(
            pack_frame(b"\x94\xa5Hello\x07\xc4\x20" + bytes(32) + DEEP[:200]), id="a field too many"
        ),
        pytest.param(pack_frame(msgspec.msgpack.encode(build_vote())), id="a vote before hello"),
        pytest.param(pack_hello(nonce=b"short"), id="a short nonce"),
        pytest.param(pack_hello(worker=0), id="the mesh's own number"),
        pytest.param(pack_hello(worker=-1), id="a negative number"),
        pytest.param(pack_hello(worker=1 << 63), id="a number that is too large"),
        pytest.param(pack_proof(), id="a proof before hello"),
        pytest.param(pack_hello() + pack_hello(), id="hello twice"),
        pytest.param(pack_hello() + pack_proof(), id="a wrong proof"),
        pytest.param(pack_hello() + pack_proof(b""), id="an empty proof"),
        pytest.param(
            pack_hello() + pack_frame(msgspec.msgpack.encode(build_vote())), id="a vote before the proof"
        ),
        pytest.param(HEADER.pack(handshake.LIMITS.message + 1, 0), id="a hello too long"),
        pytest.param(HEADER.pack(8, 1), id="a hello with a payload"),
        pytest.param(HEADER.pack(0xFFFFFFFF, 0), id="four gigabytes"),
        pytest.param(HEADER.pack(0, (1 << 64) - 1), id="a payload that is too large"),
    ],
)
def test_a_strangers_connection_is_closed_and_its_messages_are_dropped(stranger, data):
    stranger.send(data)
    stranger.ends.poll_until(stranger.is_closed)
    assert stranger.ends.received == []
    assert stranger.ends.lost == []


def test_a_failure_of_an_unproven_connection_ends_only_that_connection(stranger, monkeypatch):
    """That includes Elastane's own mistakes and lack of memory."""
    (mesh,) = stranger.ends.meshes
    for error in (MemoryError(), RecursionError("deep"), OSError(24, "Too many"), KeyError("a mistake")):

        def fail(_handshake, _message, error=error):
            raise error

        monkeypatch.setattr(handshake.Handshake, "receive", fail)
        visitor = Stranger(mesh)
        visitor.send(pack_hello())
        visitor.ends.poll_until(visitor.is_closed)
        visitor.socket.close()
    monkeypatch.undo()
    stranger.send(pack_hello())
    stranger.ends.poll_until(lambda: not stranger.is_closed() and stranger.received)


def test_an_acceptor_proves_nothing_to_strangers(stranger):
    """Otherwise a stranger between two workers could collect proofs."""
    stranger.send(pack_hello())
    stranger.ends.poll_until(lambda: not stranger.is_closed() and stranger.received)
    length, _ = HEADER.unpack(stranger.received[: HEADER.size])
    assert len(stranger.received) == HEADER.size + length
    assert isinstance(handshake.decode_handshake(stranger.received[HEADER.size :]), Hello)
    stranger.send(pack_proof())
    stranger.ends.poll_until(stranger.is_closed)
    assert len(stranger.received) == HEADER.size + length


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(pack_frame(pickle.dumps(Trap())), id="a pickle"),
        pytest.param(pack_frame(msgspec.msgpack.encode({"type": "Vote"})), id="half a vote"),
        pytest.param(HEADER.pack(LIMITS.message + 1, 0), id="too long a message"),
        pytest.param(HEADER.pack(10, LIMITS.payload + 1), id="too long a payload"),
    ],
)
def test_a_peer_that_sends_an_invalid_message_is_lost(meshes, data):
    first, second = meshes(SECRET, SECRET)
    ends = connect_meshes(first, second)
    second.send(0, build_vote())
    ends.poll_until(lambda: ends.received)
    second.peers[0].stream.sock.sendall(data)
    ends.poll_until(lambda: (0, 1) in ends.lost)
    assert len(ends.received) == 1
    # The sender does not notice it: it would report the receiver as lost, and its report might come first.
    assert (1, 0) not in ends.lost


def test_a_mesh_listens_on_loopback(meshes):
    (mesh,) = meshes(SECRET)
    assert mesh._entrance.listener.getsockname()[0] == "127.0.0.1"
