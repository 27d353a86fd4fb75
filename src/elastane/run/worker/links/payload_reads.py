"""Payloads that this worker reads in a peer's memory; see `elastane.run.worker.links.payload_offers`."""

import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from elastane.common.safe_text import escape_line
from elastane.common.untrusted_data import Malformed
from elastane.run.protocol.messages import AnyPeerMessage
from elastane.run.worker.links.frames import Payload, allocate_payload
from elastane.run.worker.links.payload_offers import WHY_LETTERS, CanRead, Offer, PartTaken, PayloadPart, Put

PATIENCE_S = 10.0
SLOWEST_BYTES_PER_S = 20e6
"""A read that takes longer than `PATIENCE_S` and as long as this speed takes for it is given up."""


class Read(Protocol):
    """A read of a peer's memory."""

    def has_ended(self) -> bool: ...
    def end(self) -> None: ...


class Reader(Protocol):
    """Reads the memory of peers; each method raises `OSError` if the peer cannot be read."""

    def meet(self, description: bytes) -> str: ...
    def begin_read(self, peer: str, pieces: Sequence[tuple[int, int]], target: memoryview) -> Read: ...


@dataclass(slots=True)
class _Held:
    """A message that waits for its payload, or for those of earlier messages.

    Args:
        missing: bytes of the payload that have not come.
        expected: bytes of the payload of which no part has been announced.
    """

    message: AnyPeerMessage
    payload: Payload
    missing: int = 0
    expected: int = 0


@dataclass(slots=True)
class _IncomingPart:
    held: _Held
    part: PayloadPart
    read: Read | None = None
    due_s: float = 0.0
    why: str = ""

    @property
    def target(self) -> Payload:
        """The memory of this part in the payload."""
        return self.held.payload[self.part.offset :][: self.part.size]


class PayloadReads:
    """The messages of one peer, in their order, of which some wait for payloads that this worker reads.

    Args:
        reader: reads the memory of peers.
        put: puts a message into the queue of the connection.
        decode: decodes a message between workers.
        report: receives the reason for which a part came over the connection.
    """

    def __init__(
        self,
        reader: Reader,
        put: Put,
        decode: Callable[[bytes], AnyPeerMessage],
        report: Callable[[str], None],
    ) -> None:
        self._reader, self._put, self._decode, self._report = reader, put, decode, report
        self._peer = ""
        self._held: deque[_Held] = deque()
        self._parts: dict[int, _IncomingPart] = {}

    @property
    def reading(self) -> bool:
        """Reads are under way; nothing announces their end."""
        return any(each.read is not None for each in self._parts.values())

    def meet(self, description: bytes) -> None:
        """Try to reach the memory of the peer, and tell it the result."""
        try:
            self._peer = self._reader.meet(description)
        except OSError as error:
            why = _shorten(error)
            self._report(why)
            self._put(CanRead(why), ())
        else:
            self._put(CanRead(), ())

    def hold(self, message: AnyPeerMessage, payload: Payload) -> None:
        """Queue a message with its payload."""
        self._held.append(_Held(message, payload))

    def begin(self, offer: Offer) -> None:
        """Queue a message, for a payload that comes in parts.

        Raises:
            Malformed: a worker sends no such offer.
        """
        held = _Held(self._decode(offer.message), allocate_payload(offer.size), offer.size, offer.size)
        self._held.append(held)

    def take_part(self, part: PayloadPart, payload: Payload) -> None:
        """Take a part with its bytes, or begin to read it.

        Raises:
            Malformed: a worker sends no such part.
        """
        incoming = self._parts.get(part.number)
        if incoming is None:
            incoming = self._parts[part.number] = self._expect(part)
        elif not incoming.why or part.pieces or part.size != incoming.part.size:
            raise Malformed("a part that was not refused comes again")
        if part.pieces:
            self._begin_read(incoming, part)
            return
        if len(payload) != part.size:
            raise Malformed("a part with other bytes than announced")
        incoming.target[:] = payload
        if incoming.why:
            self._report(incoming.why)
        self._end(incoming)

    def _expect(self, part: PayloadPart) -> _IncomingPart:
        held = next((each for each in self._held if each.expected), None)
        if held is None or part.offset != len(held.payload) - held.expected or part.size > held.expected:
            raise Malformed("a part without an offer, or outside of its payload")
        held.expected -= part.size
        return _IncomingPart(held, part)

    def _begin_read(self, incoming: _IncomingPart, part: PayloadPart) -> None:
        if sum(size for _, size in part.pieces) != part.size:
            raise Malformed("a part with pieces of another size")
        incoming.due_s = time.monotonic() + PATIENCE_S + part.size / SLOWEST_BYTES_PER_S
        try:
            if part.memory:
                self._reader.meet(part.memory)
            incoming.read = self._reader.begin_read(self._peer, part.pieces, incoming.target)
        except OSError as error:
            self._refuse(incoming, _shorten(error))

    def _end(self, incoming: _IncomingPart) -> None:
        incoming.held.missing -= incoming.part.size
        del self._parts[incoming.part.number]
        self._put(PartTaken(incoming.part.number), ())

    def _refuse(self, incoming: _IncomingPart, why: str) -> None:
        incoming.read, incoming.why = None, why
        self._put(PartTaken(incoming.part.number, why), ())

    # -- the end of reads ----------------------------------------------------------------------------------

    def poll(self) -> int:
        """Look for reads that have ended; return the bytes that they have brought."""
        brought = 0
        for incoming in [each for each in self._parts.values() if each.read is not None]:
            if incoming.read is None:
                continue  # the failure of another one has ended it
            try:
                if not incoming.read.has_ended():
                    if time.monotonic() > incoming.due_s:
                        self._fail(f"a read of {incoming.part.size} bytes has not ended in time")
                    continue
            except OSError as error:
                self._fail(_shorten(error))
                continue
            incoming.read.end()
            brought += incoming.part.size
            self._end(incoming)
        return brought

    def _fail(self, why: str) -> None:
        """Give up all reads; what they read comes over the connection.

        They may still write to their targets, so the payloads get other memory.
        """
        moved: list[_Held] = []
        for incoming in self._parts.values():
            if incoming.read is None:
                continue
            incoming.read.end()
            if not any(held is incoming.held for held in moved):
                moved.append(incoming.held)
            self._refuse(incoming, why)
        for held in moved:
            old, held.payload = held.payload, allocate_payload(len(held.payload))
            held.payload[:] = old

    def take_complete(self) -> Iterator[tuple[AnyPeerMessage, Payload]]:
        """Take the messages with whole payloads, up to the first one that waits."""
        while self._held and not self._held[0].missing:
            first = self._held.popleft()
            yield first.message, first.payload

    def close(self) -> None:
        """Give up all reads: the peer is lost, and its messages that wait have not arrived."""
        for incoming in self._parts.values():
            if incoming.read is not None:
                incoming.read.end()
        self._parts.clear()
        self._held.clear()


def _shorten(error: OSError) -> str:
    return escape_line(str(error))[:WHY_LETTERS]
