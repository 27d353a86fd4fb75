"""Two kinds of networks: streams between workers, and the control network to the coordinator.

Streams deliver in order until an end dies; the control network may lose, delay, duplicate and reorder
messages.
"""

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable
from typing import TypeAlias

import msgspec

from elastane.run.nouns.membership import WorkerId
from elastane.run.protocol.messages import AnyPeerMessage
from tests.run.simulator.clock import Clock

Payload: TypeAlias = dict[tuple[int, ...], int]
"""Symbols that travel with a frame, each with the key of its unit or sum."""


class NetworkConditions(msgspec.Struct, frozen=True, kw_only=True):
    """The behaviour of the network.

    Args:
        usual_s: the longest delay of most messages, in seconds.
        rare_s: the longest delay of the other messages, in seconds.
        rare: the share of the other messages.
        loss: the share of control messages that never arrive.
        doubled: the share of control messages that arrive twice.
        torn: the probability that only the first of a dying worker's messages arrive.
    """

    usual_s: float = 0.002
    rare_s: float = 0.03
    rare: float = 0.05
    loss: float = 0.0
    doubled: float = 0.0
    torn: float = 0.5


class Endpoint(ABC):
    """The end of a stream: one worker, as the network sees it."""

    def __init__(self, worker: WorkerId) -> None:
        self.worker = worker
        self.alive = True

    @abstractmethod
    def receive(self, sender: WorkerId, message: AnyPeerMessage, payload: Payload) -> None:
        """Receive a message."""

    @abstractmethod
    def handle_lost_peer(self, peer: WorkerId) -> None:
        """Handle the break of the stream to a peer."""


class _Stream:
    """One direction of a connection."""

    def __init__(self) -> None:
        self.in_flight: deque[tuple[AnyPeerMessage, Payload]] = deque()
        self.arrives_s = 0.0
        self.cut = False


class PeerNetwork:
    """All connections between workers.

    Args:
        clock: the clock of the history.
        conditions: the conditions of the network.
        ends: every worker of the history, dead ones included.
    """

    def __init__(self, clock: Clock, conditions: NetworkConditions, ends: dict[WorkerId, Endpoint]) -> None:
        self._clock = clock
        self._conditions = conditions
        self._ends = ends
        self._streams: dict[tuple[WorkerId, WorkerId], _Stream] = {}

    def send(self, sender: WorkerId, receiver: WorkerId, message: AnyPeerMessage, payload: Payload) -> None:
        self.connect(sender, receiver)
        stream = self._streams[sender, receiver]
        if stream.cut:
            return
        stream.in_flight.append((message, payload))
        stream.arrives_s = max(stream.arrives_s, self._clock.now + self.draw_delay())
        self._clock.schedule_at(stream.arrives_s, lambda: self._deliver(stream, sender, receiver))

    def connect(self, worker: WorkerId, peer: WorkerId) -> None:
        """Connect two workers; the higher number dials, and learns of a dead peer."""
        if worker == peer:
            return
        stream = self._streams.setdefault((worker, peer), _Stream())
        self._streams.setdefault((peer, worker), _Stream())
        if not self._ends[peer].alive:
            stream.cut = True
            if worker > peer:
                self._clock.schedule_after(self.draw_delay(), self._plan_loss(worker, peer))

    def _deliver(self, stream: _Stream, sender: WorkerId, receiver: WorkerId) -> None:
        if (opens_s := self.find_opening(sender, receiver)) > self._clock.now:
            later_s = opens_s + self.draw_delay()
            self._clock.schedule_at(later_s, lambda: self._deliver(stream, sender, receiver))
        elif stream.in_flight:
            message, payload = stream.in_flight.popleft()
            end = self._ends[receiver]
            if end.alive:
                end.receive(sender, message, payload)

    def find_opening(self, sender: WorkerId, receiver: WorkerId) -> float:
        """Return the time until which what one worker sends to another one is late; 0: it is not."""
        return 0.0

    def cut(self, worker: WorkerId) -> None:
        """Cut off a dead worker: each peer still gets its first messages, then learns of the break."""
        for sender, receiver in self._list_streams(worker):
            if receiver == worker:
                self._close(sender, receiver)
            else:
                self._break(sender, receiver)

    def _list_streams(self, worker: WorkerId) -> list[tuple[WorkerId, WorkerId]]:
        return [ends for ends in self._streams if worker in ends]

    def _close(self, sender: WorkerId, receiver: WorkerId) -> None:
        """Close a stream: what is in flight does not arrive."""
        stream = self._streams[sender, receiver]
        stream.cut = True
        stream.in_flight.clear()

    def _break(self, sender: WorkerId, receiver: WorkerId) -> None:
        """Break a stream: the receiver may still get its first messages, then learns of the break."""
        stream = self._streams[sender, receiver]
        stream.cut = True
        if stream.in_flight and self._clock.random.random() < self._conditions.torn:
            for _ in range(self._clock.random.randint(1, len(stream.in_flight))):
                stream.in_flight.pop()
        arrives_s = max(stream.arrives_s if stream.in_flight else 0.0, self.find_opening(sender, receiver))
        noticed = max(arrives_s, self._clock.now) + self.draw_delay()
        self._clock.schedule_at(noticed, self._plan_loss(receiver, sender))

    def _plan_loss(self, survivor: WorkerId, dead: WorkerId) -> Callable[[], None]:
        end = self._ends[survivor]
        return lambda: end.handle_lost_peer(dead) if end.alive else None

    def draw_delay(self) -> float:
        chance = self._clock.random
        longest = (
            self._conditions.usual_s if chance.random() >= self._conditions.rare else self._conditions.rare_s
        )
        return chance.random() * longest


class ControlNetwork:
    """The control network: websockets that break and reconnect, and lose messages."""

    def __init__(self, clock: Clock, conditions: NetworkConditions) -> None:
        self._clock = clock
        self._conditions = conditions

    def deliver(self, callback: Callable[[], None]) -> None:
        """Deliver a message once, twice or never, after a delay: run the callback as often."""
        chance = self._clock.random
        if chance.random() < self._conditions.loss:
            return
        for _ in range(2 if chance.random() < self._conditions.doubled else 1):
            usual = chance.random() >= 2 * self._conditions.rare
            longest = self._conditions.usual_s if usual else 4 * self._conditions.rare_s
            self._clock.schedule_after(chance.random() * longest, callback)
