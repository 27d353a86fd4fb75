"""Payloads that a peer reads in this worker's memory, instead of getting them over the connection.

The connection carries all messages, in their order. A message with a large payload becomes an offer, and its
payload comes in parts. Of each part the sender says where it lies; the receiver reads it with NIXL and
answers. What cannot be read, or only slowly, comes over the connection::

    both      -> Reachable(how to read this worker's memory)
    receiver  -> CanRead()
    sender    -> Offer(message, size), PayloadPart(pieces), PayloadPart() with its bytes
    receiver  -> PartTaken(), PartTaken(), PartTaken()

The sender's memory stays as it is meanwhile, for the same reason as when it waits to be sent: the round does
not go on without the receiver. A receiver that goes on without this payload drops its message.
"""

import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Annotated, Protocol, TypeAlias

import msgspec
import numpy as np

from elastane.common.safe_text import escape_line
from elastane.common.untrusted_data import Malformed
from elastane.run.worker.links.frames import Buffer

OFFERED_BYTES = 256 << 10
"""Smaller payloads are sent with their messages: NIXL would save less time than its answer takes."""
PART_BYTES = 64 << 20
PART_PIECES = 4096
STAGE_BYTES = 16 << 20
STAGES = 2
"""Copies of memory that is not lent, in progress for each peer."""
COMPARED_BYTES = 1 << 20
COMPARED_PARTS = 4
"""This many of the first parts go each way, so that a slow way is found. At least this large, because of the
time that an answer takes."""
SLOWER = 0.5
"""NIXL is given up if it reads at less than this share of the speed of the connection."""
MOST_BYTES = 1 << 40
WHY_LETTERS = 1000

_Number = Annotated[int, msgspec.Meta(ge=0, lt=1 << 62)]
_Size = Annotated[int, msgspec.Meta(ge=1, le=MOST_BYTES)]
_Piece = tuple[Annotated[int, msgspec.Meta(ge=0, lt=1 << 62)], _Size]
_Why = Annotated[str, msgspec.Meta(max_length=WHY_LETTERS)]


class Reachable(msgspec.Struct, frozen=True, tag=True):
    """The sender lends its memory to a peer that understands this description."""

    description: Annotated[bytes, msgspec.Meta(max_length=1 << 20)]


class CanRead(msgspec.Struct, frozen=True, tag=True):
    """The sender can read the receiver's memory; else ``why`` it cannot."""

    why: _Why = ""


class Offer(msgspec.Struct, frozen=True, tag=True):
    """A message, and the size of its payload, which comes in parts."""

    message: bytes
    size: _Size


class PayloadPart(msgspec.Struct, frozen=True, tag=True):
    """A part of the payload of the oldest offer of which parts are missing.

    Args:
        number: different for all parts of a sender, but the same if a refused part comes again.
        offset: in the payload.
        pieces: where the part lies in the sender's memory; empty: its bytes are in this frame.
        memory: describes memory that the sender has lent since the last part; empty: none.
    """

    number: _Number
    offset: _Number
    size: _Size
    pieces: Annotated[tuple[_Piece, ...], msgspec.Meta(max_length=PART_PIECES)] = ()
    memory: bytes = b""


class PartTaken(msgspec.Struct, frozen=True, tag=True):
    """The receiver has this part; else ``why`` it cannot read it, and it has to come over the connection."""

    number: _Number
    why: _Why = ""


LinkMessage: TypeAlias = Reachable | CanRead | Offer | PayloadPart | PartTaken
Put: TypeAlias = Callable[[LinkMessage, Sequence[Buffer]], None]
"""Puts a message into the queue of a connection."""


class Lender(Protocol):
    """Lends memory of this worker to its peers."""

    def lend(self, memory: tuple[int, int]) -> None: ...
    def has_lent(self, piece: tuple[int, int]) -> bool: ...
    def describe_lent(self, first: int) -> tuple[bytes, int]: ...


class LentMemory:
    """The memory of this worker that its peers may read: arenas, and copies of other memory.

    Attributes:
        list_arenas: returns the memory that stays for the life of this worker, as it is now.
    """

    def __init__(self, lender: Lender) -> None:
        self.lender = lender
        self.list_arenas: Callable[[], Iterable[Buffer]] = tuple
        self._free_stages: list[memoryview] = []

    def has(self, view: memoryview) -> bool:
        """Return whether peers can read this memory; arenas that are new are lent now."""
        piece = find_piece(view)
        if self.lender.has_lent(piece):
            return True
        for arena in self.list_arenas():
            if not self.lender.has_lent(find_piece(arena)):
                self.lender.lend(find_piece(arena))
        return self.lender.has_lent(piece)

    def take_stage(self) -> memoryview:
        """Return memory that peers can read, to copy to."""
        if not self._free_stages:
            stage = memoryview(np.zeros(STAGE_BYTES, np.uint8)).cast("B")  # type: ignore[arg-type]
            self.lender.lend(find_piece(stage))
            return stage
        return self._free_stages.pop()

    def give_back(self, stage: memoryview) -> None:
        """Take memory of `take_stage` back."""
        self._free_stages.append(stage)


def find_piece(view: Buffer) -> tuple[int, int]:
    """Return the address and the size of a memory."""
    return np.frombuffer(view, np.uint8).ctypes.data, memoryview(view).nbytes


@dataclass(slots=True)
class _OutgoingPart:
    """A part of a payload until the peer has it.

    Args:
        lent: the views are in memory that is lent; else they are copied to such memory first.
    """

    number: int
    offset: int
    size: int
    views: list[memoryview]
    lent: bool
    stage: memoryview | None = None
    put_s: float = 0.0
    read: bool = False


class PayloadOffers:
    """The payloads that one peer reads in this worker's memory.

    Args:
        put: puts a message into the queue of the connection.
        report: receives the reason for which the peer reads nothing more, or not as planned.

    Attributes:
        ready: the peer can read this worker's memory, and does so quickly enough.
    """

    def __init__(self, memory: LentMemory, put: Put, report: Callable[[str], None]) -> None:
        self._memory, self._put, self._report = memory, put, report
        self.ready = False
        self._known = 0
        self._next = 0
        self._waiting: deque[_OutgoingPart] = deque()
        self._under_way: dict[int, _OutgoingPart] = {}
        self._stages = 0
        self._speeds: dict[bool, list[float]] = {True: [], False: []}

    def accepts(self, size: int) -> bool:
        """Return whether a payload of this size should be offered."""
        return self.ready and size >= OFFERED_BYTES

    def offer(self, message: bytes, size: int, payload: Iterable[Buffer]) -> bool:
        """Offer a message with a payload; return False if this worker cannot lend its memory."""
        try:
            parts = self._divide(payload)
        except OSError as error:
            self._give_up(error)
            return False
        self._put(Offer(message, size), ())
        self._waiting.extend(parts)
        self._put_parts()
        return True

    def _give_up(self, error: OSError) -> None:
        self.ready = False
        self._report(escape_line(str(error)))

    def _divide(self, payload: Iterable[Buffer]) -> list[_OutgoingPart]:
        parts: list[_OutgoingPart] = []
        offset = 0
        for buffer in payload:
            view = memoryview(buffer).cast("B")
            lent = bool(view.nbytes) and self._memory.has(view)
            most = PART_BYTES if lent else STAGE_BYTES
            while view.nbytes:
                last = parts[-1] if parts else None
                if last is None or last.lent != lent or last.size >= most or len(last.views) == PART_PIECES:
                    last = _OutgoingPart(self._next, offset, 0, [], lent)
                    parts.append(last)
                    self._next += 1
                some, view = view[: most - last.size], view[most - last.size :]
                last.views.append(some)
                last.size += some.nbytes
                offset += some.nbytes
        return parts

    def _put_parts(self) -> None:
        while self._waiting:
            part = self._waiting[0]
            part.read = self.ready and not self._is_compared(part)
            if part.read and not part.lent and self._stages == STAGES:
                return
            self._waiting.popleft()
            self._put_part(part)

    def _is_compared(self, part: _OutgoingPart) -> bool:
        """Return whether a part goes over the connection, to see how fast that is."""
        compared = part.size >= COMPARED_BYTES and len(self._speeds[False]) < COMPARED_PARTS
        return compared and part.number % 2 == 1

    def _copy(self, part: _OutgoingPart) -> None:
        part.stage = self._memory.take_stage()
        self._stages += 1
        start = 0
        for view in part.views:
            part.stage[start : start + view.nbytes] = view
            start += view.nbytes

    def _put_part(self, part: _OutgoingPart) -> None:
        self._under_way[part.number] = part
        part.put_s = time.monotonic()
        memory = b""
        if part.read:
            try:
                if not part.lent:
                    self._copy(part)
                memory, self._known = self._memory.lender.describe_lent(self._known)
            except OSError as error:
                self._give_up(error)
                part.read = False
        if not part.read:
            self._put(PayloadPart(part.number, part.offset, part.size), part.views)
            return
        views = part.views if part.stage is None else [part.stage[: part.size]]
        self._put(
            PayloadPart(part.number, part.offset, part.size, join_pieces(map(find_piece, views)), memory), ()
        )

    def end_part(self, answer: PartTaken) -> int:
        """Handle the answer to a part; return the bytes that the peer has read.

        Raises:
            Malformed: there is no such part.
        """
        part = self._under_way.pop(answer.number, None)
        if part is None or (answer.why and not part.read):
            raise Malformed("an answer to no part")
        self._free(part)
        read = 0
        if answer.why:
            self.ready = part.read = False
            self._put_part(part)
        else:
            read = part.size if part.read else 0
            self._compare(part)
        self._put_parts()
        return read

    def _free(self, part: _OutgoingPart) -> None:
        if part.stage is not None:
            self._memory.give_back(part.stage)
            self._stages -= 1
            part.stage = None

    def _compare(self, part: _OutgoingPart) -> None:
        if part.size < COMPARED_BYTES or len(self._speeds[part.read]) == COMPARED_PARTS or not self.ready:
            return
        self._speeds[part.read].append(part.size / max(1e-9, time.monotonic() - part.put_s))
        if is_too_slow(self._speeds[True], self._speeds[False]):
            self.ready = False
            fast, slow = (max(self._speeds[way]) / 1e9 for way in (False, True))
            self._report(f"NIXL reads {slow:.3f} GB/s, and the connection carries {fast:.3f} GB/s")

    def close(self) -> None:
        """Free the memory of all parts: the peer is lost."""
        for part in self._under_way.values():
            self._free(part)
        self._under_way.clear()
        self._waiting.clear()


def is_too_slow(read: Sequence[float], sent: Sequence[float]) -> bool:
    """Return whether reading is slower than the connection, by the speeds of the first parts.

    The best of several: other work of both machines delays some.
    """
    return min(len(read), len(sent)) >= COMPARED_PARTS and max(read) < SLOWER * max(sent)


def join_pieces(pieces: Iterable[tuple[int, int]]) -> tuple[tuple[int, int], ...]:
    """Join pieces of memory that follow each other without a gap."""
    joined: list[tuple[int, int]] = []
    for address, size in pieces:
        if joined and sum(joined[-1]) == address:
            joined[-1] = joined[-1][0], joined[-1][1] + size
        else:
            joined.append((address, size))
    return tuple(joined)
