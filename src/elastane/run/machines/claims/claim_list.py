"""Claiming and reading slots in any place, with a time limit."""

import logging
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

from elastane.common.errors import BadInput
from elastane.run.machines.claims.history import describe_unreadable
from elastane.run.machines.claims.place import ClaimsUnavailable, Place
from elastane.run.machines.claims.records import HeldSlot, Record, decode_content, encode_record

WAIT_S = 10.0
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.02, 1.0
"""The pauses between attempts while a place is away: each is twice the one before."""

TRY_AGAIN = "try again when the place is back"

T = TypeVar("T")

logger = logging.getLogger(__name__)


class ClaimList:
    """A claim list in a place. Several threads may share it.

    Args:
        wait_s: the longest time that a method takes while the place is away.
    """

    def __init__(self, place: Place, *, wait_s: float = WAIT_S) -> None:
        self._place, self._wait_s = place, wait_s
        self._limit = TimeLimit()
        self._known = 0
        """The last slot that was seen held. Slots are never released, so it must be held for ever."""
        self._reported: set[int] = set()

    @property
    def where(self) -> str:
        """The path or URL of the place."""
        return self._place.where

    def claim(self, slot: int, record: Record) -> HeldSlot:
        """Claim a slot and return its holder: this record, or the one that was there first.

        Claim only the slot after the last one that `read` has returned. A claim may be repeated with the same
        record; its earlier outcome does not matter.

        Args:
            slot: its number, from 1.
            record: with a nonce that no other claim has.

        Raises:
            BadInput: the slot before is not held, so the list would have a gap.
            ClaimsUnavailable: the place has not answered within ``wait_s``. The outcome may be unknown.
            ClaimsUnusable: the place cannot keep a claim list.
        """
        if slot < 1:
            raise BadInput(f"invalid slot {slot}: slots are numbered from 1")
        content = encode_record(record)
        give_up = time.monotonic() + self._wait_s
        written = False

        def attempt() -> HeldSlot:
            nonlocal written
            if (found := self._find_holder(slot, give_up)) is not None:
                return found
            written = True
            if self._call(lambda: self._place.create(slot, content), give_up):
                return self._learn(HeldSlot(slot, record))
            if (found := self._find_holder(slot, give_up)) is not None:
                return found
            raise ClaimsUnavailable(f"the claim list {self.where} neither accepts nor shows slot {slot}")

        try:
            return self._try_until(give_up, attempt)
        except ClaimsUnavailable as error:
            raise _explain_outage(error, slot if written else None) from error

    def read(self, first_slot: int = 1) -> tuple[HeldSlot, ...]:
        """Return all held slots from ``first_slot`` on, in order. Over NFS the last ones may show up late.

        Raises:
            ClaimsUnavailable: the place has not answered within ``wait_s``.
            ClaimsUnusable: the place cannot keep a claim list.
        """
        give_up = time.monotonic() + self._wait_s
        try:
            return self._try_until(give_up, lambda: self._read(first_slot, give_up))
        except ClaimsUnavailable as error:
            raise _explain_outage(error, None) from error

    def prove_writable(self) -> None:
        """Prove that this process can read the list and claim in it; no slot is claimed.

        Raises:
            ClaimsUnavailable: the place has not answered within ``wait_s``.
            ClaimsUnusable: the place cannot keep a claim list, or a right is missing.
        """
        give_up = time.monotonic() + self._wait_s

        def attempt() -> None:
            self._read(1, give_up)
            self._call(self._place.prove_writable, give_up)

        try:
            self._try_until(give_up, attempt)
        except ClaimsUnavailable as error:
            raise ClaimsUnavailable(
                error.what,
                means=error.means or "no coordinator begins without a claim there",
                do=error.do or TRY_AGAIN,
            ) from error

    def _find_holder(self, slot: int, give_up: float) -> HeldSlot | None:
        """Return the holder of a slot; None: the slot is the next one.

        Raises:
            BadInput: the slot before is not held.
        """
        held = {held_slot.slot: held_slot for held_slot in self._read(max(slot - 1, 1), give_up)}
        if slot > 1 and slot - 1 not in held:
            raise BadInput(
                f"slot {slot} of the claim list {self.where} cannot be claimed: slot {slot - 1} is not held",
                means="the list would have a gap, at which readers stop",
                do="read the list to its end, and claim the slot after it",
            )
        return held.get(slot)

    def _read(self, first_slot: int, give_up: float) -> tuple[HeldSlot, ...]:
        # Read from a known slot on, to notice another list in the place of the known one.
        begin = max(1, min(first_slot, self._known))
        contents = self._call(lambda: self._place.read(begin), give_up)
        held = tuple(
            HeldSlot(slot, decode_content(content)) for slot, content in enumerate(contents, start=begin)
        )
        last = begin - 1 + len(held)
        if last < self._known:
            raise ClaimsUnavailable(
                f"the claim list {self.where} has lost slot {last + 1}, and {self._known} were held",
                means="another or an older list is in its place, and a claim there would count for nothing",
                do="mount or restore the list with which this process began",
            )
        for held_slot in held:
            self._learn(held_slot)
        return tuple(held_slot for held_slot in held if held_slot.slot >= first_slot)

    def _learn(self, held: HeldSlot) -> HeldSlot:
        self._known = max(self._known, held.slot)
        if held.slot not in self._reported and (sentence := describe_unreadable(held, self.where)):
            self._reported.add(held.slot)
            logger.warning("%s", sentence)
        return held

    def _call(self, function: Callable[[], T], give_up: float) -> T:
        return self._limit.call(function, give_up - time.monotonic())

    def _try_until(self, give_up: float, attempt: Callable[[], T]) -> T:
        """Return the result of the first attempt that finds the place available; raise the last answer."""
        pause_s, answer = FIRST_PAUSE_S, None
        while True:
            try:
                return attempt()
            except NotAnswered:
                # The last attempt often has little time, and the error of an earlier one says more.
                silent = f"the claim list {self.where} has not answered within {self._wait_s:g} s"
                raise answer or ClaimsUnavailable(silent) from None
            except ClaimsUnavailable as error:
                if time.monotonic() + pause_s >= give_up:
                    raise
                answer = error
            time.sleep(pause_s)
            pause_s = min(2 * pause_s, LONGEST_PAUSE_S)


def _explain_outage(error: ClaimsUnavailable, unknown_slot: int | None) -> ClaimsUnavailable:
    """Return the error with what it means for a claim."""
    if unknown_slot is None:
        means = error.means or "nothing was claimed; training goes on, but no membership can change by itself"
        return ClaimsUnavailable(error.what, means=means, do=error.do or TRY_AGAIN)
    return ClaimsUnavailable(
        error.what,
        means=f"whether this claim holds slot {unknown_slot} is unknown; "
        + (error.means or "nothing else happened"),
        do=f"do not act on it; claim slot {unknown_slot} again with the same record, or read the slot"
        + (f"; {error.do}" if error.do else ""),
    )


# -- A time limit for calls that may hang: a network file system blocks until its server is back ---------


class NotAnswered(Exception):
    """A call has not returned within its time."""


class TimeLimit:
    """Runs one call at a time, each in a thread of its own, and stops waiting for it after a while.

    A call that hangs goes on in the background; until it returns, the next one is not started.
    """

    def __init__(self) -> None:
        self._busy = threading.Lock()

    def call(self, function: Callable[[], T], within_s: float) -> T:
        """Return the result of a function, or raise its error.

        Raises:
            NotAnswered: it has not returned within so much time, or an earlier call has not.
        """
        give_up = time.monotonic() + within_s
        if not self._busy.acquire(timeout=max(0.0, within_s)):
            raise NotAnswered
        outcome: Future[T] = Future()

        def run() -> None:
            try:
                outcome.set_result(function())
            except BaseException as error:  # noqa: BLE001 - the caller gets every error
                outcome.set_exception(error)
            finally:
                self._busy.release()

        try:
            threading.Thread(target=run, name="elastane-claims", daemon=True).start()
        except BaseException:
            self._busy.release()
            raise
        try:
            return outcome.result(timeout=max(0.0, give_up - time.monotonic()))
        except TimeoutError:
            # It may have returned just now, and its own error may be a TimeoutError too.
            if outcome.done():
                return outcome.result()
            raise NotAnswered from None
