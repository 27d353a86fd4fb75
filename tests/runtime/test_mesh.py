"""Connections between workers: who does not know the secret is not heard, nor is what nobody could mean."""

import os
import pickle
import socket
import time

import msgspec
import pytest

from elastane.protocol.mesh import Fetch, State, Vote
from elastane.runtime.links.mesh import HEADER, HELLO_LIMIT, MESSAGE_LIMIT, NONCE_BYTES, Hello, Mesh

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


def test_what_is_said_before_there_is_a_connection_waits_for_it(meshes):
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


def test_a_peer_found_dead_while_it_is_answered_is_lost_once_and_no_error(meshes):
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


def test_a_wrong_secret_is_refused_by_both_sides(meshes):
    first, second = meshes(SECRET, b"guess")
    ends = connected(first, second)
    second.send(0, vote())
    first.send(1, vote())
    ends.until(lambda: ends.lost)
    assert ends.heard == []
    assert not first._peers


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


def hello(worker: int = 7, *, proof: bytes = b"", nonce: bytes = bytes(NONCE_BYTES)) -> bytes:
    return frame(msgspec.msgpack.encode(Hello(worker, 1, 2, 3, nonce, proof)))


class Trap:
    def __reduce__(self):
        return os.abort, ()


@pytest.mark.parametrize(
    "words",
    [
        pytest.param(os.urandom(4096), id="noise"),
        pytest.param(b"GET / HTTP/1.1\r\n\r\n", id="http"),
        pytest.param(frame(b"\xc1not msgpack"), id="no message"),
        pytest.param(frame(pickle.dumps(Trap())), id="a pickle"),
        pytest.param(frame(msgspec.msgpack.encode(vote())), id="a vote before hello"),
        pytest.param(hello(nonce=b"short"), id="a short nonce"),
        pytest.param(hello(worker=0), id="the mesh's own number"),
        pytest.param(hello() + hello(proof=bytes(32)), id="no proof"),
        pytest.param(hello() + hello(), id="an empty proof"),
        pytest.param(HEADER.pack(HELLO_LIMIT + 1, 0), id="a hello too long"),
        pytest.param(HEADER.pack(8, 1), id="a hello with a payload"),
        pytest.param(HEADER.pack(0xFFFFFFFF, 0), id="four gigabytes"),
    ],
)
def test_a_stranger_is_hung_up_on_and_nothing_of_it_is_heard(stranger, words):
    stranger.say(words)
    stranger.ends.until(stranger.hung_up)
    assert stranger.ends.heard == []
    assert stranger.ends.lost == []


def test_an_answer_of_the_mesh_itself_proves_nothing(stranger):
    """Sent back, the mesh's own proof is for the other role, and so no proof."""
    mesh = stranger.ends.meshes[0]
    stranger.ends.until(lambda: not stranger.hung_up() and stranger.said)
    length, _ = HEADER.unpack(stranger.said[: HEADER.size])
    theirs = msgspec.msgpack.decode(stranger.said[HEADER.size : HEADER.size + length], type=Hello)
    stranger.said = b""
    stranger.say(hello(nonce=theirs.nonce))
    stranger.ends.until(lambda: not stranger.hung_up() and stranger.said)
    answer = msgspec.msgpack.decode(stranger.said[HEADER.size :], type=Hello)
    assert answer.proof
    stranger.say(hello(nonce=theirs.nonce, proof=answer.proof))
    stranger.ends.until(stranger.hung_up)
    assert not mesh._peers


@pytest.mark.parametrize(
    "words",
    [
        pytest.param(frame(pickle.dumps(Trap())), id="a pickle"),
        pytest.param(frame(msgspec.msgpack.encode({"type": "Vote"})), id="half a vote"),
        pytest.param(HEADER.pack(MESSAGE_LIMIT + 1, 0), id="too long a message"),
        pytest.param(HEADER.pack(10, (1 << 40) + 1), id="too long a payload"),
    ],
)
def test_even_a_peer_is_hung_up_on_when_it_talks_nonsense(meshes, words):
    first, second = meshes(SECRET, SECRET)
    ends = connected(first, second)
    second.send(0, vote())
    ends.until(lambda: ends.heard)
    second._peers[0].sock.sendall(words)
    ends.until(lambda: (0, 1) in ends.lost)
    assert len(ends.heard) == 1


def test_a_mesh_listens_on_loopback(meshes):
    (mesh,) = meshes(SECRET)
    assert mesh._listener.getsockname()[0] == "127.0.0.1"
