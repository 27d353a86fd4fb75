"""Connections between living workers that break, fail to open, or fall silent."""

from typing import NamedTuple, Protocol

from elastane.run.nouns.membership import WorkerId
from elastane.run.protocol.messages import AnyPeerMessage
from tests.run.simulator.clock import Clock
from tests.run.simulator.network import Endpoint, NetworkConditions, Payload, PeerNetwork
from tests.run.simulator.network_faults import LONGEST_DIAL_S, SHORTEST_SILENCE_S, SIDES, make_pair

Pair = frozenset[WorkerId]


class Partition(Protocol):
    """A partition that lasts: the workers of one side are apart from all others."""

    def contains(self, worker: WorkerId) -> bool: ...


class NumberPartition(NamedTuple):
    """A partition in which one side has the workers with some numbers modulo `SIDES`."""

    side: tuple[int, ...]

    def contains(self, worker: WorkerId) -> bool:
        """Return whether a worker is on this side."""
        return worker % SIDES in self.side


def is_between(partition: Partition, a: WorkerId, b: WorkerId) -> bool:
    return partition.contains(a) != partition.contains(b)


class FaultyNetwork(PeerNetwork):
    """All connections between workers; the worker with the higher number dials.

    A broken connection is never opened again, and a failed dial counts as one.

    Args:
        clock: the clock of the history.
        conditions: the conditions of the network.
        ends: every worker of the history, dead ones included.

    Attributes:
        broken: the pairs of workers whose connection has broken or could not be opened.
        spared: the workers that no partition concerns.
    """

    def __init__(self, clock: Clock, conditions: NetworkConditions, ends: dict[WorkerId, Endpoint]) -> None:
        super().__init__(clock, conditions, ends)
        self.broken: set[Pair] = set()
        self.spared: set[WorkerId] = set()
        self._dialled: set[Pair] = set()
        self._closed: set[Pair] = set()
        self._severed: set[Pair] = set()
        self._silent: set[WorkerId] = set()
        self._partitions: list[Partition] = []
        self._held: dict[tuple[WorkerId, WorkerId], list[tuple[AnyPeerMessage, Payload]]] = {}
        self._delays: list[tuple[Partition, float]] = []

    # -- traffic -----------------------------------------------------------------------------------------

    def send(self, sender: WorkerId, receiver: WorkerId, message: AnyPeerMessage, payload: Payload) -> None:
        pair = make_pair(sender, receiver)
        if pair in self._closed or receiver in self._silent:
            return
        if sender < receiver and pair not in self._dialled and self.are_apart(sender, receiver):
            self._held.setdefault((sender, receiver), []).append((message, payload))
        else:
            super().send(sender, receiver, message, payload)

    def connect(self, worker: WorkerId, peer: WorkerId) -> None:
        pair = make_pair(worker, peer)
        if pair in self._closed or peer in self._silent:
            if worker > peer:
                self._plan_late_loss(worker, peer, 0.0)
            return
        super().connect(worker, peer)
        if worker <= peer or pair in self._dialled:
            return
        self._dialled.add(pair)
        held = self._held.pop((peer, worker), [])
        if self._ends[peer].alive and self.are_apart(worker, peer):
            self.broken.add(pair)
            self._close_pair(worker, peer)
            self._plan_late_loss(worker, peer, 0.0)
            return
        for message, payload in held:
            super().send(peer, worker, message, payload)

    def are_apart(self, a: WorkerId, b: WorkerId) -> bool:
        """Return whether a dial between two workers fails now."""
        if make_pair(a, b) in self._severed:
            return True
        if a in self.spared or b in self.spared:
            return False
        return any(is_between(partition, a, b) for partition in self._partitions)

    # -- faults ------------------------------------------------------------------------------------------

    def sever(self, a: WorkerId, b: WorkerId) -> None:
        """Let every later dial between two workers fail."""
        self._severed.add(make_pair(a, b))

    def break_link(self, a: WorkerId, b: WorkerId, *, one_way: bool) -> None:
        """Break the connection of two workers, or let them never have one.

        Args:
            a: a worker.
            b: another worker.
            one_way: what ``a`` sends is lost from now on; the other direction works until an end notices.
        """
        pair = make_pair(a, b)
        if pair in self.broken:
            return
        if pair not in self._dialled:
            self._hold(a, b)
            return
        self.broken.add(pair)
        if one_way:
            self._close(a, b)
            for end, peer in ((a, b), (b, a)):
                self._plan_late_loss(end, peer, 0.0)
            return
        self._closed.add(pair)
        self._break(a, b)
        self._break(b, a)

    def begin_partition(self, partition: Partition) -> None:
        self._partitions.append(partition)

    def break_links(self, partition: Partition, *, one_way: bool) -> None:
        """Break all connections between the sides of a partition that has begun; see `break_link`."""
        for a, b in list(self._streams):
            alive = self._ends[a].alive and self._ends[b].alive
            is_first = partition.contains(a)
            if alive and is_first and is_between(partition, a, b) and self.are_apart(a, b):
                self.break_link(a, b, one_way=one_way)

    def delay_until(self, partition: Partition, until_s: float) -> None:
        """Deliver what crosses a partition that has begun only when it is over."""
        self._delays.append((partition, until_s))

    def find_opening(self, sender: WorkerId, receiver: WorkerId) -> float:
        times = [until_s for partition, until_s in self._delays if is_between(partition, sender, receiver)]
        return max(times, default=0.0)

    def heal(self, partition: Partition) -> None:
        self._partitions.remove(partition)

    def silence(self, worker: WorkerId) -> None:
        """Stop all traffic of a worker; its peers notice that later."""
        self._silent.add(worker)
        for sender, receiver in self._list_streams(worker):
            self._close(sender, receiver)
            if sender == worker and make_pair(worker, receiver) in self._dialled:
                self._plan_late_loss(receiver, worker, SHORTEST_SILENCE_S)

    # -- streams -----------------------------------------------------------------------------------------

    def _list_streams(self, worker: WorkerId) -> list[tuple[WorkerId, WorkerId]]:
        return [ends for ends in super()._list_streams(worker) if frozenset(ends) not in self._closed]

    def _close_pair(self, a: WorkerId, b: WorkerId) -> None:
        self._closed.add(make_pair(a, b))
        self._close(a, b)
        self._close(b, a)

    def _hold(self, a: WorkerId, b: WorkerId) -> None:
        """Keep what the lower number has sent until the higher one dials."""
        lower, higher = min(a, b), max(a, b)
        stream = self._streams.get((lower, higher))
        if stream is not None:
            self._held.setdefault((lower, higher), []).extend(stream.in_flight)
            stream.in_flight.clear()

    def _plan_late_loss(self, worker: WorkerId, peer: WorkerId, least_s: float) -> None:
        """Plan that a worker loses a peer that does not answer; a connection closes at that moment."""
        chance, lose = self._clock.random, self._plan_loss(worker, peer)

        def close() -> None:
            if self._ends[worker].alive and (worker, peer) in self._streams:
                self._close_pair(worker, peer)
            lose()

        self._clock.schedule_after(least_s + chance.random() * (LONGEST_DIAL_S - least_s), close)
