"""Slots of a run's claim list, in requests to a controller and in its answers."""

from typing import Annotated

import msgspec

from elastane.common.bodies import AnswerBody, RequestBody

LARGEST_CONTENT_BYTES = 64 << 10
"""The size limit of the content of one slot."""
MOST_SLOTS = 100_000
"""The most slots of one list in a controller's store."""


class NewSlot(RequestBody, frozen=True, kw_only=True):
    """A claim of the next slot.

    Args:
        slot: its number, from 1.
        content: in Base64.
    """

    slot: Annotated[int, msgspec.Meta(ge=1, le=MOST_SLOTS)]
    content: Annotated[bytes, msgspec.Meta(max_length=LARGEST_CONTENT_BYTES)]


class SlotAnswer(AnswerBody, frozen=True, kw_only=True):
    """The answer to a claim.

    Args:
        written: this claim holds the slot; otherwise the slot has the content of an earlier claim, which may
            be the same one if it was repeated.
    """

    written: bool


class SlotContent(AnswerBody, frozen=True, kw_only=True, omit_defaults=True):
    """A held slot.

    Args:
        slot: its number.
        content: in Base64, as it was claimed.
        damage: why its content cannot be returned; empty: it is whole.
    """

    slot: int
    content: bytes = b""
    damage: str = ""


class KeptClaimList(AnswerBody, frozen=True, kw_only=True):
    """A claim list in a controller's store.

    Args:
        team: owner.
        name: of the list; it begins with the name of the run.
        user: that began it.
        content_bytes: of all slots.
        used_s: about when it was last read or claimed in, in seconds since 1970.
    """

    team: str
    name: str
    user: str
    content_bytes: int
    used_s: float
