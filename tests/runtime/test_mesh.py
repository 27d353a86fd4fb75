"""Connections between workers: who does not know the secret is not heard, nor is what nobody could mean."""

import os
import pickle
import socket
import time

import msgspec
import pytest

from elastane.protocol.messages import Fetch, State, Vote
from elastane.runtime.links import entrance, handshake
from elastane.runtime.links.frames import HEADER
from elastane.runtime.links.handshake import NONCE_BYTES, Hello, Process, Proof
from elastane.runtime.links.mesh import LIMITS, Mesh

SECRET = b"secret"
WAIT_S = 20


class Ends:
    """Some meshes driven in turn by this thread, and what each has heard."""

    def __init__(self, *meshes: Mesh) -> None:
        self.meshes = meshes
        self.heard: list[tuple[int, int, object, bytes]] = []
        self.lost: list[tuple[int, int]] = []

    def until(self, done) -> None:
        deadline = time.monotonic() + WAIT_S
        while not done():
            assert time.monotonic() < deadline, f"heard {self.heard}, lost {self.lost}"
            for mesh in self.meshes:
                mesh.poll(
                    0.01,
                    lambda peer, message, payload, me=mesh.worker: self.heard.append(
                        (me, peer, message, bytes(payload))
                    ),
                    lambda peer, me=mesh.worker: self.lost.append((me, peer)),
                )


@pytest.fixture
def meshes():
    made = []

    def make(*secrets: bytes) -> list[Mesh]:
        made.extend(Mesh(number, secret) for number, secret in enumerate(secrets))
        return made

    yield make
    for mesh in made:
        mesh.close()


def connected(first: Mesh, second: Mesh) -> Ends:
    second.dial(first.worker, first.host, first.port)
    return Ends(first, second)


def vote(round_: int = 1) -> Vote:
    return Vote(generation=1, round=round_, leaves=(), norms={0: 0.5})


def test_messages_and_payloads_arrive_whole_and_in_order(meshes):
    first, second = meshes(SECRET, SECRET)
    ends = connected(first, second)
    large = os.urandom(5 << 20)
    second.send(0, vote(1))
    second.send(0, State(generation=1, committed=1), [large, memoryview(b"tail")])
    second.send(0, vote(2))
    first.send(1, Fetch(generation=1, committed=1, values=(1, 2)))
    ends.until(lambda: len(ends.heard) == 4)
    assert [said[2:] for said in ends.heard if said[0] == 0] == [
        (vote(1), b""),
        (State(generation=1, committed=1), large + b"tail"),
        (vote(2), b""),
    ]


def test_messages_sent_before_the_connection_wait_for_it(meshes):
    first, second = meshes(SECRET, SECRET)
    first.send(1, vote())
    ends = connected(first, second)
    ends.until(lambda: ends.heard)
    assert ends.heard == [(1, 0, vote(), b"")]


def test_both_sides_notice_a_broken_connection(meshes):
    first, second = meshes(SECRET, SECRET)
    ends = connected(first, second)
    second.send(0, vote())
    ends.until(lambda: ends.heard)
    second._drop(second._peers[0])
    ends.until(lambda: len(ends.lost) == 2)
    assert sorted(ends.lost) == [(0, 1), (1, 0)]


def test_a_peer_that_dies_during_an_answer_is_lost_once(meshes):
    first, second = meshes(SECRET, SECRET)
    ends = connected(first, second)
    second.send(0, vote(1))
    ends.until(lambda: ends.heard)
    second.send(0, vote(2))
    second.send(0, vote(3))
    first.send(1, vote(4))  # never read, so what is sent after it is answered with a reset
    second._drop(second._peers[0])

    def answer(peer, message, payload):
        ends.heard.append((0, peer, message, bytes(payload)))
        first.send(1, vote(5))
        time.sleep(0.05)
        first.send(1, vote(6))

    lost = []
    deadline = time.monotonic() + WAIT_S
    while not lost:
        assert time.monotonic() < deadline
        first.poll(0.01, answer, lost.append)
    first.poll(0.01, answer, lost.append)
    assert lost == [1]


def test_a_peer_that_does_not_listen_is_lost_at_once(meshes):
    (mesh,) = meshes(SECRET)
    mesh.worker = 1
    with socket.create_server(("127.0.0.1", 0)) as gone:
        port = gone.getsockname()[1]
    mesh.dial(0, "127.0.0.1", port)
    ends = Ends(mesh)
    ends.until(lambda: ends.lost)
    assert ends.lost == [(1, 0)]


def test_a_wrong_secret_is_refused_and_the_peer_is_lost_after_a_while(meshes, monkeypatch):
    monkeypatch.setattr(entrance, "PATIENCE_S", 0.3)
    first, second = meshes(SECRET, b"guess")
    ends = connected(first, second)
    second.send(0, vote())
    first.send(1, vote())
    ends.until(lambda: ends.lost)
    assert ends.lost == [(1, 0)]
    assert ends.heard == []
    assert not first._peers
    assert not second._peers


# -- strangers ---------------------------------------------------------------------------------------------


class Stranger:
    """A plain socket to a mesh."""

    def __init__(self, mesh: Mesh) -> None:
        self.ends = Ends(mesh)
        self.socket = socket.create_connection((mesh.host, mesh.port))
        self.socket.setblocking(False)
        self.said = b""

    def say(self, data: bytes) -> None:
        self.socket.sendall(data)

    def hung_up(self) -> bool:
        try:
            data = self.socket.recv(1 << 16)
        except BlockingIOError:
            return False
        except ConnectionResetError:
            return True
        self.said += data
        return not data


@pytest.fixture
def stranger(meshes):
    (mesh,) = meshes(SECRET)
    visitor = Stranger(mesh)
    yield visitor
    visitor.socket.close()


def frame(body: bytes, payload: bytes = b"") -> bytes:
    return HEADER.pack(len(body), len(payload)) + body + payload


def hello(worker: int = 7, *, nonce: bytes = bytes(NONCE_BYTES)) -> bytes:
    return frame(msgspec.msgpack.encode(Hello(worker, nonce)))


def proof(proof: bytes = bytes(32)) -> bytes:
    return frame(msgspec.msgpack.encode(Proof(Process(1, 2, 3), proof)))


class Trap:
    def __reduce__(self):
        return os.abort, ()


DEEP = b"\x91" * 5000 + b"\xc0"


@pytest.mark.parametrize(
    "words",
    [
        pytest.param(os.urandom(4096), id="noise"),
        pytest.param(b"GET / HTTP/1.1\r\n\r\n", id="http"),
        pytest.param(frame(b""), id="nothing"),
        pytest.param(frame(b"\xc1not msgpack"), id="no message"),
        pytest.param(frame(pickle.dumps(Trap())), id="a pickle"),
        pytest.param(frame(DEEP), id="nested a thousand levels deep"),
        pytest.param(frame(b"\x81\xa1x" + DEEP), id="an unknown field, nested as deep"),
        pytest.param(frame(b"\x94\xa5Hello\x07\xc4\x20" + bytes(32) + DEEP[:200]), id="a field too many"),
        pytest.param(frame(msgspec.msgpack.encode(vote())), id="a vote before hello"),
        pytest.param(hello(nonce=b"short"), id="a short nonce"),
        pytest.param(hello(worker=0), id="the mesh's own number"),
        pytest.param(hello(worker=-1), id="a negative number"),
        pytest.param(hello(worker=1 << 63), id="a number beyond all"),
        pytest.param(proof(), id="a proof before hello"),
        pytest.param(hello() + hello(), id="hello twice"),
        pytest.param(hello() + proof(), id="a wrong proof"),
        pytest.param(hello() + proof(b""), id="an empty proof"),
        pytest.param(hello() + frame(msgspec.msgpack.encode(vote())), id="a vote before the proof"),
        pytest.param(HEADER.pack(handshake.LIMITS.message + 1, 0), id="a hello too long"),
        pytest.param(HEADER.pack(8, 1), id="a hello with a payload"),
        pytest.param(HEADER.pack(0xFFFFFFFF, 0), id="four gigabytes"),
        pytest.param(HEADER.pack(0, (1 << 64) - 1), id="a payload beyond all"),
    ],
)
def test_a_strangers_connection_is_closed_and_its_messages_are_dropped(stranger, words):
    stranger.say(words)
    stranger.ends.until(stranger.hung_up)
    assert stranger.ends.heard == []
    assert stranger.ends.lost == []


def test_a_failure_of_an_unproven_connection_ends_only_that_connection(stranger, monkeypatch):
    """Our own mistakes and our own lack of memory included."""
    (mesh,) = stranger.ends.meshes
    for error in (MemoryError(), RecursionError("deep"), OSError(24, "Too many"), KeyError("a mistake")):

        def fail(_handshake, _message, error=error):
            raise error

        monkeypatch.setattr(handshake.Handshake, "receive", fail)
        visitor = Stranger(mesh)
        visitor.say(hello())
        visitor.ends.until(visitor.hung_up)
        visitor.socket.close()
    monkeypatch.undo()
    stranger.say(hello())
    stranger.ends.until(lambda: not stranger.hung_up() and stranger.said)


def test_an_acceptor_proves_nothing_to_strangers(stranger):
    """Otherwise a stranger who stands between two workers could collect proofs."""
    stranger.say(hello())
    stranger.ends.until(lambda: not stranger.hung_up() and stranger.said)
    length, _ = HEADER.unpack(stranger.said[: HEADER.size])
    assert len(stranger.said) == HEADER.size + length
    assert isinstance(handshake.decode_handshake(stranger.said[HEADER.size :]), Hello)
    stranger.say(proof())
    stranger.ends.until(stranger.hung_up)
    assert len(stranger.said) == HEADER.size + length


@pytest.mark.parametrize(
    "words",
    [
        pytest.param(frame(pickle.dumps(Trap())), id="a pickle"),
        pytest.param(frame(msgspec.msgpack.encode({"type": "Vote"})), id="half a vote"),
        pytest.param(HEADER.pack(LIMITS.message + 1, 0), id="too long a message"),
        pytest.param(HEADER.pack(10, LIMITS.payload + 1), id="too long a payload"),
    ],
)
def test_a_peer_that_sends_nonsense_is_lost(meshes, words):
    first, second = meshes(SECRET, SECRET)
    ends = connected(first, second)
    second.send(0, vote())
    ends.until(lambda: ends.heard)
    second._peers[0].stream.sock.sendall(words)
    ends.until(lambda: (0, 1) in ends.lost)
    assert len(ends.heard) == 1
    # It is not told: it would say that it has lost the other one, and might be believed.
    assert (1, 0) not in ends.lost


def test_a_mesh_listens_on_loopback(meshes):
    (mesh,) = meshes(SECRET)
    assert mesh._entrance.listener.getsockname()[0] == "127.0.0.1"
