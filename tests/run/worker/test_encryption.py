"""Encrypted connections between workers: they carry the same frames, and nobody on the wire can read them."""

import contextlib
import os
import selectors
import socket
import threading

import pytest

from elastane.common.connections.unproven_connections import AdmissionRules
from elastane.run.nouns.machine_address import MachineAddress
from elastane.run.nouns.rundir import RunDir
from elastane.run.protocol.messages import State, Vote
from elastane.run.worker.links.connection import PeerConnection
from elastane.run.worker.links.encryption import Encryption, load_encryption
from elastane.run.worker.links.frames import HEADER, build_frame
from elastane.run.worker.links.handshake import Handshake
from elastane.run.worker.links.mesh import FRAMES_AT_ONCE, Mesh

pytest.importorskip("cryptography")
from elastane.run.connections.run_certificate import create_certificate
from tests.waiting import WAIT_S

from .polled_meshes import PolledMeshes

SECRET = b"secret"
FIRST, SECOND = "127.0.0.2", "127.0.0.1"
VALUES = b"recognisable parameters " * 100_000
STATE = State(generation=1, committed=7, values=(0,), states=())


class Ends(PolledMeshes):
    """Two meshes in one thread, at addresses of different machines."""

    def __init__(self, first: Encryption | None, second: Encryption | None, other: str = SECOND) -> None:
        self.meshes = [
            Mesh(0, SECRET, MachineAddress(FIRST), encryption=first),
            Mesh(1, SECRET, MachineAddress(other), encryption=second),
        ]
        self.received: list[tuple[int, object, bytes]] = []
        self.lost: list[int] = []

    def dial(self, port: int | None = None) -> None:
        self.meshes[1].dial(0, FIRST, port or self.meshes[0].port)

    def poll(self) -> None:
        for mesh in self.meshes:
            mesh.poll(
                0.01,
                lambda peer, message, payload: self.received.append((peer, message, bytes(payload))),
                self.lost.append,
            )

    def get_socket(self) -> socket.socket:
        """Return the socket of worker 0."""
        self.poll_until(lambda: 1 in self.meshes[0].peers)
        return self.meshes[0].peers[1].stream.sock

    def close(self) -> None:
        while self.meshes:
            self.meshes.pop().close()


@pytest.fixture
def encryption(tmp_path):
    create_certificate(RunDir(tmp_path))
    return load_encryption(RunDir(tmp_path))


@pytest.fixture
def ends():
    made = []

    def make(*arguments) -> Ends:
        made.append(Ends(*arguments))
        return made[-1]

    yield make
    for one in made:
        one.close()


class Recorder:
    """Forwards connections to a port, and keeps all that passes."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._listener = socket.create_server((FIRST, 0))
        self.port = self._listener.getsockname()[1]
        self.passed = bytearray()
        self._thread = threading.Thread(target=self._forward)
        self._thread.start()

    def join(self) -> None:
        self._thread.join(WAIT_S)

    def _forward(self) -> None:
        accepted, (host, _) = self._listener.accept()
        # From the address of the dialler, as a router does.
        onward = socket.create_connection((FIRST, self._port), source_address=(host, 0))
        with self._listener, accepted, onward, selectors.DefaultSelector() as selector:
            selector.register(accepted, selectors.EVENT_READ, onward)
            selector.register(onward, selectors.EVENT_READ, accepted)
            while True:
                for key, _ in selector.select():
                    data = key.fileobj.recv(1 << 16)
                    if not data:
                        return
                    self.passed += data
                    key.data.sendall(data)


def exchange(ends) -> None:
    ends.meshes[0].send(1, STATE, [VALUES])
    ends.meshes[1].send(0, STATE, [VALUES[:100], VALUES[100:]])
    ends.poll_until(lambda: len(ends.received) == 2)
    assert sorted(peer for peer, _, _ in ends.received) == [0, 1]
    assert all(message == STATE and payload == VALUES for _, message, payload in ends.received)
    assert ends.lost == []


@pytest.fixture
def any_acceptor(monkeypatch):
    """Let a proof pass through another address, which the handshake forbids, so that the wire can be read."""
    create = Handshake.__init__
    monkeypatch.setattr(
        Handshake,
        "__init__",
        lambda self, credentials, _, dialled: create(self, credentials, ("", 0), dialled),
    )


@pytest.mark.usefixtures("any_acceptor")
@pytest.mark.parametrize("encrypts", [True, False])
def test_the_wire_carries_no_plaintext(ends, encryption, encrypts):
    both = ends(*[encryption if encrypts else None] * 2)
    recorder = Recorder(both.meshes[0].port)
    both.dial(recorder.port)
    exchange(both)
    both.close()
    recorder.join()
    wire = bytes(recorder.passed)
    assert len(wire) > 2 * len(VALUES)
    # Without encryption both are there, so the recorder sees what it must.
    header = HEADER.pack(len(wire), len(VALUES))[-8:]
    assert (VALUES[:24] in wire) is (header in wire) is not encrypts


def test_connections_between_machines_use_tls_1_3(ends, encryption):
    both = ends(encryption, encryption)
    both.dial()
    assert both.get_socket().version() == "TLSv1.3"


def test_connections_within_a_machine_stay_plain(ends, encryption):
    both = ends(encryption, encryption, FIRST)
    both.dial()
    assert not hasattr(both.get_socket(), "version")
    exchange(both)


def test_more_frames_arrive_at_once_than_one_poll_reads(ends, encryption):
    both = ends(encryption, encryption)
    both.dial()
    both.get_socket()
    rounds = range(20 * FRAMES_AT_ONCE)
    for number in rounds:
        both.meshes[0].send(1, Vote(generation=1, round=number, leaves=()))
    both.poll_until(lambda: len(both.received) == len(rounds))
    assert [message.round for _, message, _ in both.received] == list(rounds)


def test_frames_that_arrive_in_one_record_are_all_read(ends, encryption):
    both = ends(encryption, encryption)
    both.dial()
    both.get_socket()
    stream = both.meshes[0].peers[1].stream
    both.meshes[1].send(0, Vote(generation=1, round=0, leaves=()))
    both.poll_until(lambda: len(both.received) == 1)
    sent = []
    stream.put, put = sent.extend, stream.put
    rounds = range(3 * FRAMES_AT_ONCE)
    for number in rounds:
        both.meshes[0].send(1, Vote(generation=1, round=number, leaves=()))
    put([memoryview(b"".join(sent))])
    assert stream.flush()
    both.poll_until(lambda: len(both.received) == 1 + len(rounds))


def vote(number: int) -> Vote:
    return Vote(generation=1, round=number, leaves=())


def exchange_votes(both: Ends, count: int) -> None:
    """Send frames of many sizes both ways, some while connections change, and check their order."""
    payloads = [bytes([number % 251]) * (number * 7919 % 90_000) for number in range(count)]
    for number, payload in enumerate(payloads):
        for sender in (0, 1):
            both.meshes[sender].send(1 - sender, vote(number), [payload])
        if number % 5 == 0:
            both.meshes[number % 2].poll(0, lambda *read: both.received.append(read), both.lost.append)
    both.poll_until(lambda: len(both.received) == 2 * count or both.lost)
    assert both.lost == []
    for sender in (0, 1):
        found = [
            (message.round, bytes(payload)) for peer, message, payload in both.received if peer == sender
        ]
        assert found == list(enumerate(payloads))


def exchange_often(both: Ends) -> None:
    """Exchange votes with pauses, in which a new connection can come."""
    for _ in range(20):
        both.received.clear()
        exchange_votes(both, 20)


def test_keys_are_renewed_in_a_second_connection(ends, encryption, monkeypatch):
    monkeypatch.setattr("elastane.run.worker.links.connection.RENEW_BYTES", 300_000)
    both = ends(encryption, encryption)
    both.dial()
    sockets = [both.get_socket()]
    for _ in range(5):
        both.received.clear()
        exchange_votes(both, 60)
        if both.get_socket() is not sockets[-1]:
            sockets.append(both.get_socket())
    assert len(sockets) >= 4
    assert all(used.fileno() == -1 for used in sockets[:-1])
    # The counters go on, for those that measure what crosses.
    assert both.meshes[0].streams[1].received > 5 * 60 * 40_000


@pytest.mark.parametrize("addresses", [(SECOND,), (FIRST,)], ids=["not due", "plain"])
def test_other_connections_are_not_renewed(ends, encryption, monkeypatch, addresses):
    if addresses == (FIRST,):
        monkeypatch.setattr("elastane.run.worker.links.connection.RENEW_BYTES", 1000)
    both = ends(encryption, encryption, *addresses)
    both.dial()
    first = both.get_socket()
    exchange_votes(both, 20)
    assert both.get_socket() is first
    assert first.fileno() >= 0


def test_a_renewal_that_fails_costs_no_connection(ends, encryption, monkeypatch):
    monkeypatch.setattr("elastane.run.worker.links.connection.RENEW_BYTES", 100_000)
    monkeypatch.setattr("elastane.run.worker.links.connection.POSTPONED_BYTES", 500_000)
    both = ends(encryption, encryption)
    both.dial()
    first = both.get_socket()
    # Nothing listens where the dialler dials again.
    port = both.meshes[0].port
    both.meshes[1].dial(0, FIRST, 1)
    exchange_often(both)
    assert both.get_socket() is first
    both.meshes[1].dial(0, FIRST, port)
    exchange_often(both)
    assert both.get_socket() is not first


def test_a_new_connection_that_the_peer_has_refused_is_replaced_later(ends, encryption, monkeypatch):
    monkeypatch.setattr("elastane.run.worker.links.connection.RENEW_BYTES", 100_000)
    both = ends(encryption, encryption)
    both.dial()
    first = both.get_socket()
    refused, adopt = [], PeerConnection.adopt

    def refuse_once(connection, stream, peer):
        if connection.peer == 1 and not refused:
            refused.append(stream)
            return False
        return adopt(connection, stream, peer)

    monkeypatch.setattr(PeerConnection, "adopt", refuse_once)
    exchange_often(both)
    assert refused
    assert both.get_socket() is not first


def test_a_peer_that_is_lost_while_new_keys_come_is_lost_once(ends, encryption, monkeypatch):
    monkeypatch.setattr("elastane.run.worker.links.connection.RENEW_BYTES", 100_000)
    both = ends(encryption, encryption)
    both.dial()
    both.get_socket()
    dialler = both.meshes[1]
    dialler.send(0, STATE, [VALUES])
    assert dialler.peers[0].is_due
    dialler._drop(dialler.peers[0])
    both.poll_until(lambda: 0 in both.lost)
    # A second loss would be seen in one of the next polls.
    for _ in range(50):
        both.poll()
    assert both.lost.count(0) == 1
    assert dialler.peers == {}


def test_a_mark_without_a_new_connection_breaks_the_peer(ends, encryption):
    both = ends(encryption, encryption)
    both.dial()
    both.get_socket()
    both.meshes[1].peers[0].put(build_frame(b""))
    both.meshes[1].send(0, vote(1))
    both.poll_until(lambda: both.lost == [1])
    assert both.received == []


def test_a_second_connection_of_another_process_is_refused(ends, encryption):
    both = ends(encryption, encryption)
    both.dial()
    first = both.get_socket()
    stranger = Mesh(1, SECRET, MachineAddress(SECOND), encryption=encryption)
    both.meshes.append(stranger)
    stranger.dial(0, FIRST, both.meshes[0].port)
    both.poll_until(lambda: both.lost == [0])
    assert both.get_socket() is first
    both.meshes.remove(stranger)
    stranger.close()
    both.lost.clear()
    exchange(both)


@pytest.mark.parametrize("accepting", [True, False])
def test_a_peer_that_does_not_encrypt_costs_only_its_own_connection(ends, encryption, accepting, monkeypatch):
    both = ends(*(encryption if side is accepting else None for side in (True, False)))
    third = Mesh(2, SECRET, MachineAddress("127.0.0.3"), encryption=encryption if accepting else None)
    both.meshes.append(third)
    with monkeypatch.context() as patch:
        patch.setattr("elastane.run.worker.links.entrance.PATIENCE_S", 0.2)
        both.dial()
        both.poll_until(lambda: both.lost == [0])
    assert both.received == []
    third.dial(0, FIRST, both.meshes[0].port)
    third.send(0, STATE, [VALUES])
    both.poll_until(lambda: both.received == [(2, STATE, VALUES)])
    assert both.lost == [0]


def test_a_certificate_of_another_run_is_refused(ends, encryption, tmp_path, monkeypatch):
    monkeypatch.setattr("elastane.run.worker.links.entrance.PATIENCE_S", 0.2)
    other = RunDir(tmp_path / "other")
    other.root.mkdir()
    create_certificate(other)
    both = ends(load_encryption(other), encryption)
    both.dial()
    both.poll_until(lambda: both.lost == [0])
    assert both.meshes[0].peers == {}


def test_an_altered_record_breaks_the_connection(ends, encryption):
    both = ends(encryption, encryption)
    both.dial()
    descriptor = os.dup(both.get_socket().fileno())
    both.meshes[1].send(0, STATE, [b"1"])
    both.poll_until(lambda: len(both.received) == 1)
    os.write(descriptor, b"\x17\x03\x03\x00\x20" + bytes(32))
    os.close(descriptor)
    both.poll_until(lambda: 0 in both.lost)


def test_the_death_of_a_peer_is_noticed(ends, encryption):
    both = ends(encryption, encryption)
    both.dial()
    both.get_socket()
    both.meshes[0].close_in_child()
    both.meshes.pop(0)
    both.poll_until(lambda: both.lost == [0])


def test_strangers_that_begin_no_handshake_give_way_to_a_peer(ends, encryption):
    both = ends(encryption, encryption)
    entrance = both.meshes[0]._entrance
    entrance.rules = lambda: AdmissionRules(
        most=8, deadline_s=WAIT_S, least_s=0.0, descriptor_ceiling=1 << 20
    )
    address = (FIRST, both.meshes[0].port)
    with contextlib.ExitStack() as strangers:
        for _ in range(100):
            strangers.enter_context(socket.create_connection(address, source_address=(SECOND, 0)))
        both.dial()
        both.get_socket()
        assert 0 < len(entrance._unproven) <= 8
        exchange(both)
