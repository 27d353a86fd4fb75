"""Payloads that workers read in each other's memory arrive whole and in order, or over the connection.

One contract for NIXL, where it is installed, and for reads within this process, which tests can delay.
"""

import ctypes
import os
import subprocess
import sys
from importlib.util import find_spec

import numpy as np
import pytest

from elastane.common.untrusted_data import Malformed
from elastane.run.protocol.messages import State, Vote
from elastane.run.worker.links import payload_offers, payload_reads
from elastane.run.worker.links.mesh import Mesh
from elastane.run.worker.links.nixl_agent import NixlAgent
from elastane.run.worker.links.payload_exchange import RemoteMemory
from elastane.run.worker.links.payload_offers import Offer, PartTaken, PayloadPart, is_too_slow, join_pieces

from .polled_meshes import PolledMeshes

SECRET = b"secret"
needs_nixl = pytest.mark.skipif(find_spec("nixl") is None, reason="NIXL is not installed: elastane[nixl]")


class ProcessAgent:
    """Lends and reads the memory of this process, when the test lets it.

    Attributes:
        problem: raised by reads that begin from now on.
        held: reads that begin from now on do not end.
        locked: no more memory can be lent.
    """

    def __init__(self, name: str) -> None:
        self.description = name.encode()
        self.lent: list[tuple[int, int]] = []
        self.problem, self.held, self.reads, self.locked = "", False, 0, False

    def lend(self, memory):
        if self.locked:
            raise OSError("no more memory may be locked")
        self.lent.append(memory)

    def has_lent(self, piece):
        return any(start <= piece[0] and sum(piece) <= start + size for start, size in self.lent)

    def describe_lent(self, first):
        return b"more" if first < len(self.lent) else b"", len(self.lent)

    def meet(self, description):
        if self.problem:
            raise OSError(self.problem)
        return description.decode()

    def begin_read(self, _peer, pieces, target):
        if self.problem:
            raise OSError(self.problem)
        self.reads += 1
        return ProcessRead(self, pieces, target)


class ProcessRead:
    def __init__(self, agent, pieces, target):
        self._agent, self._pieces, self._target = agent, pieces, target

    def has_ended(self):
        if self._agent.held:
            return False
        if self._agent.problem:
            raise OSError(self._agent.problem)
        self._target[:] = b"".join(ctypes.string_at(*piece) for piece in self._pieces)
        return True

    def end(self):
        pass


class Pair(PolledMeshes):
    """Two meshes that read each other's memory, and what they have received."""

    def __init__(self, agents) -> None:
        self.agents = agents
        self.meshes = [Mesh(number, SECRET, share_memory=False) for number in (0, 1)]
        self.received: list[tuple[int, object, bytes]] = []
        self.lost: list[int] = []
        self.reported: list[tuple[int, int, str]] = []
        self.arenas = [np.frombuffer(os.urandom(3 << 20), np.uint8).copy() for _ in agents]
        for mesh, agent, arena in zip(self.meshes, agents, self.arenas, strict=True):
            mesh.remote_memory = RemoteMemory(agent, lambda *report: self.reported.append(report))
            mesh.remote_memory.lent.list_arenas = lambda arena=arena: [memoryview(arena)]
        self.meshes[1].dial(0, self.meshes[0].host, self.meshes[0].port)

    def poll(self) -> None:
        for mesh in self.meshes:
            mesh.poll(
                0.01,
                lambda _peer, message, payload, me=mesh.worker: self.received.append(
                    (me, message, bytes(payload))
                ),
                self.lost.append,
            )

    def meet(self) -> None:
        """Let both worker find out that they can read each other's memory."""
        self.send(0, 1)
        self.send(1, 0)
        self.poll_until(lambda: len(self.received) == 2)
        for _ in range(5):
            self.poll()
        self.received.clear()

    def send(self, sender: int, round_: int, *payload) -> None:
        kind = (
            State(generation=1, committed=round_) if payload else Vote(generation=1, round=round_, leaves=())
        )
        self.meshes[sender].send(1 - sender, kind, payload)

    def close(self) -> None:
        for mesh in self.meshes:
            mesh.close()


def describe(received):
    return [
        (message.committed if isinstance(message, State) else message.round, payload)
        for _, message, payload in received
    ]


@pytest.fixture(params=["process", pytest.param("nixl", marks=needs_nixl)])
def pair(request, monkeypatch):
    monkeypatch.setattr(payload_offers, "COMPARED_PARTS", 0)
    kind = ProcessAgent if request.param == "process" else lambda name: NixlAgent(name, reached=False)
    made = Pair([kind(f"{request.node.name}-{number}") for number in (0, 1)])
    made.meet()
    yield made
    made.close()


@pytest.fixture
def delayed(monkeypatch):
    """Return a pair with reads that a test can hold up."""
    monkeypatch.setattr(payload_offers, "COMPARED_PARTS", 0)
    made = Pair([ProcessAgent("0"), ProcessAgent("1")])
    made.meet()
    yield made
    made.close()


def test_payloads_of_lent_and_other_memory_arrive_whole_and_in_order(pair):
    arena = memoryview(pair.arenas[1])
    other = os.urandom(payload_offers.STAGE_BYTES * 3 + 5)
    mixed = [arena[5 : 2 << 20], b"between", arena[: 1 << 20], other]
    pair.send(1, 2)
    pair.send(1, 3, *mixed)
    pair.send(1, 4)
    pair.send(1, 5, arena)
    pair.send(1, 6, b"small")
    pair.poll_until(lambda: len(pair.received) == 5)
    assert describe(pair.received) == [
        (2, b""),
        (3, b"".join(mixed)),
        (4, b""),
        (5, bytes(arena)),
        (6, b"small"),
    ]
    assert pair.reported == []


def test_bytes_that_are_read_count_at_both_ends(pair):
    before = pair.meshes[1].streams[0].sent, pair.meshes[0].streams[1].received
    pair.send(1, 2, memoryview(pair.arenas[1]))
    pair.poll_until(lambda: pair.received)
    for _ in range(3):
        pair.poll()
    sent = pair.meshes[1].streams[0].sent - before[0]
    received = pair.meshes[0].streams[1].received - before[1]
    assert 3 << 20 < sent < (3 << 20) + 1000
    assert 3 << 20 < received < (3 << 20) + 1000


def test_later_messages_wait_for_a_read(delayed):
    delayed.agents[0].held = True
    delayed.send(1, 2, memoryview(delayed.arenas[1]))
    delayed.send(1, 3)
    for _ in range(5):
        delayed.poll()
    assert delayed.received == []
    delayed.agents[0].held = False
    delayed.poll_until(lambda: len(delayed.received) == 2)
    assert describe(delayed.received) == [(2, bytes(delayed.arenas[1])), (3, b"")]


@pytest.mark.parametrize("when", ["at the beginning", "under way", "never ends"])
def test_what_cannot_be_read_comes_over_the_connection(delayed, monkeypatch, when):
    reader = delayed.agents[0]
    reader.held = when != "at the beginning"
    reader.problem = "" if reader.held else "no route"
    delayed.send(1, 2, memoryview(delayed.arenas[1]))
    delayed.send(1, 3)
    delayed.poll_until(lambda: reader.problem or reader.reads)
    if when == "under way":
        reader.problem, reader.held = "no route", False
    if when == "never ends":
        monkeypatch.setattr(payload_reads, "PATIENCE_S", -1.0)
        delayed.send(1, 4, memoryview(delayed.arenas[1]))
    delayed.poll_until(lambda: len(delayed.received) == (2 if when != "never ends" else 3))
    assert describe(delayed.received)[:2] == [(2, bytes(delayed.arenas[1])), (3, b"")]
    assert {report[:2] for report in delayed.reported} == {(0, 1)}
    reads = reader.reads
    delayed.received.clear()
    delayed.send(1, 5, memoryview(delayed.arenas[1]))
    delayed.poll_until(lambda: delayed.received)
    assert (describe(delayed.received), reader.reads) == ([(5, bytes(delayed.arenas[1]))], reads)


def test_a_late_read_cannot_write_to_a_payload_that_came_over_the_connection(delayed, monkeypatch):
    reader, targets = delayed.agents[0], []
    reader.held = True
    begin_read = reader.begin_read
    monkeypatch.setattr(
        reader,
        "begin_read",
        lambda peer, pieces, target: targets.append(target) or begin_read(peer, pieces, target),
    )
    monkeypatch.setattr(payload_reads, "PATIENCE_S", -1.0)
    payloads = []
    delayed.send(1, 2, memoryview(delayed.arenas[1]))

    def poll():
        for mesh in delayed.meshes:
            mesh.poll(0.01, lambda *got: payloads.append(got[2]), delayed.lost.append)

    delayed.poll = poll
    delayed.poll_until(lambda: payloads)
    for target in targets:
        target[:] = bytes(len(target))
    assert bytes(payloads[0]) == bytes(delayed.arenas[1])


def test_a_peer_without_reachable_memory_gets_payloads_over_the_connection(monkeypatch):
    agents = [ProcessAgent("0"), ProcessAgent("1")]
    agents[0].problem = "no network"
    pair = Pair(agents)
    pair.meet()
    pair.send(1, 2, memoryview(pair.arenas[1]))
    pair.poll_until(lambda: pair.received)
    assert describe(pair.received) == [(2, bytes(pair.arenas[1]))]
    assert pair.reported == [(0, 1, "no network")]
    assert agents[0].reads == 0
    pair.close()


def test_memory_that_cannot_be_lent_is_sent(delayed):
    delayed.agents[1].locked = True
    delayed.send(1, 2, memoryview(delayed.arenas[1]))
    delayed.poll_until(lambda: delayed.received)
    assert describe(delayed.received) == [(2, bytes(delayed.arenas[1]))]
    assert delayed.reported == [(0, 1, "no more memory may be locked")]


def test_messages_of_a_lost_peer_that_wait_for_its_memory_have_not_arrived(delayed):
    delayed.agents[0].held = True
    delayed.send(1, 2, memoryview(delayed.arenas[1]))
    delayed.send(1, 3)
    delayed.poll_until(lambda: delayed.agents[0].reads)
    delayed.meshes[1].close()
    delayed.meshes.pop()
    delayed.poll_until(lambda: delayed.lost)
    assert (delayed.received, delayed.lost, delayed.reported) == ([], [1], [])


def test_the_first_parts_show_which_way_is_slow():
    assert not is_too_slow([1.0] * 3, [9.0] * 9)
    assert is_too_slow([1.0, 2.0, 3.0, 4.0], [9.0] * 4)
    assert not is_too_slow([1.0, 1.0, 1.0, 5.0], [9.0] * 4)


def test_a_slow_way_is_given_up(monkeypatch):
    monkeypatch.setattr(payload_offers, "SLOWER", 1e9)
    pair = Pair([ProcessAgent("0"), ProcessAgent("1")])
    pair.meet()
    for round_ in range(20):
        pair.send(1, round_, memoryview(pair.arenas[1]))
    pair.poll_until(lambda: len(pair.received) == 20)
    assert [payload for _, payload in describe(pair.received)] == [bytes(pair.arenas[1])] * 20
    ((reader, owner, why),) = pair.reported
    assert (reader, owner) == (0, 1)
    assert why.startswith("NIXL reads ")
    pair.close()


def test_pieces_without_a_gap_are_joined():
    assert join_pieces([(0, 4), (4, 4), (9, 1), (10, 2)]) == ((0, 8), (9, 3))


@pytest.mark.parametrize(
    "message",
    [
        PayloadPart(0, 0, 8, ((1, 8),)),
        PayloadPart(0, 0, 8),
        PartTaken(7),
        PartTaken(7, "why"),
        Offer(b"no message", 8),
    ],
)
def test_a_peer_that_breaks_the_exchange_is_lost(delayed, message):
    exchange = delayed.meshes[0]._exchanges[1]
    with pytest.raises(Malformed):
        exchange.receive(message, memoryview(b""))


KILLED = """
import sys
import numpy as np
from elastane.run.protocol.messages import State
from elastane.run.worker.links.mesh import Mesh
from elastane.run.worker.links.nixl_agent import NixlAgent
from elastane.run.worker.links.payload_exchange import RemoteMemory

mesh = Mesh(1, b"secret", share_memory=False)
mesh.remote_memory = RemoteMemory(NixlAgent("killed", reached=False), lambda *report: print(report))
arena = memoryview(np.ones(256 << 20, np.uint8))
mesh.remote_memory.lent.list_arenas = lambda: [arena]
mesh.dial(0, sys.argv[1], int(sys.argv[2]))
sent = False
while True:
    mesh.poll(0.01, lambda *got: None, lambda peer: None)
    exchange = mesh._exchanges.get(0)
    if exchange is not None and exchange._offers.ready and not sent:
        sent = True
        mesh.send(0, State(generation=1, committed=1), [arena] * 8)
"""


@needs_nixl
@pytest.mark.processes
def test_a_kill_while_its_memory_is_read_loses_the_peer_only(monkeypatch):
    monkeypatch.setattr(payload_offers, "COMPARED_PARTS", 0)
    pair = Pair([NixlAgent(f"survivor-{number}", reached=False) for number in (0, 2)])
    # The third worker goes on with the first one.
    pair.meet()
    pair.received.clear()
    # As between machines: within one, the system copies while it is asked to begin.
    environment = os.environ | {"UCX_TLS": "tcp"}
    reader = pair.meshes[0]
    command = [sys.executable, "-c", KILLED.replace("Mesh(1,", "Mesh(5,"), reader.host, str(reader.port)]
    owner = subprocess.Popen(command, env=environment)
    try:
        pair.poll_until(lambda: 5 in reader._exchanges and reader._exchanges[5].reading)
    finally:
        owner.kill()
        owner.wait()
    pair.poll_until(lambda: 5 in pair.lost)
    assert pair.received == []
    pair.send(1, 2, memoryview(pair.arenas[1]))
    pair.poll_until(lambda: pair.received)
    assert describe(pair.received) == [(2, bytes(pair.arenas[1]))]
    pair.close()
