"""The payloads that this worker and one peer read in each other's memory; the mesh drives it."""

from collections.abc import Callable, Iterator, Sequence
from typing import Protocol

from elastane.run.protocol.messages import AnyPeerMessage
from elastane.run.worker.links.frames import Buffer, Payload, StreamBytes
from elastane.run.worker.links.payload_offers import (
    CanRead,
    Lender,
    LentMemory,
    LinkMessage,
    Offer,
    PartTaken,
    PayloadOffers,
    PayloadPart,
    Put,
    Reachable,
)
from elastane.run.worker.links.payload_reads import PayloadReads, Reader


class MemoryAgent(Lender, Reader, Protocol):
    """Lends this worker's memory and reads that of others: a `NixlAgent`."""

    description: bytes


class RemoteMemory:
    """The memory of workers on other machines, which read each other's payloads in it.

    Args:
        agent: of this worker.
        report: receives a reader, the owner of the memory, and why the reader does not read it any more.
    """

    def __init__(self, agent: MemoryAgent, report: Callable[[int, int, str], None]) -> None:
        self.agent, self.report = agent, report
        self.lent = LentMemory(agent)


class PayloadExchange:
    """The exchange with one peer.

    Args:
        worker: this one.
        put: puts a message into the queue of the connection.
        decode: decodes a message between workers.
        bytes_: the bytes on the connection, to which those that are read are added.
    """

    def __init__(
        self,
        memory: RemoteMemory,
        worker: int,
        peer: int,
        put: Put,
        decode: Callable[[bytes], AnyPeerMessage],
        bytes_: StreamBytes,
    ) -> None:
        self._bytes = bytes_
        self._offers = PayloadOffers(memory.lent, put, lambda why: memory.report(peer, worker, why))
        self._reads = PayloadReads(memory.agent, put, decode, lambda why: memory.report(worker, peer, why))
        put(Reachable(memory.agent.description), ())

    @property
    def reading(self) -> bool:
        """Reads are under way, and only `take_complete` finds their end."""
        return self._reads.reading

    def offer(self, message: bytes, payload: Sequence[Buffer]) -> bool:
        """Let the peer read a payload in this worker's memory; return False if it is to be sent."""
        size = sum(memoryview(part).nbytes for part in payload)
        return self._offers.accepts(size) and self._offers.offer(message, size, payload)

    def receive(self, message: AnyPeerMessage | LinkMessage, payload: Payload) -> None:
        """Take what has arrived on the connection.

        Raises:
            Malformed: a worker sends no such message.
        """
        match message:
            case Reachable(description):
                self._reads.meet(description)
            case CanRead(why):
                self._offers.ready = not why
            case Offer():
                self._reads.begin(message)
            case PayloadPart():
                self._reads.take_part(message, payload)
            case PartTaken():
                self._bytes.sent += self._offers.end_part(message)
            case _:
                self._reads.hold(message, payload)

    def take_complete(self) -> Iterator[tuple[AnyPeerMessage, Payload]]:
        """Take the messages that are whole, with their payloads, in the order in which they were sent."""
        self._bytes.received += self._reads.poll()
        return self._reads.take_complete()

    def close(self) -> None:
        """Give up all payloads under way: the peer is lost."""
        self._offers.close()
        self._reads.close()
