"""The interface of a place that keeps a claim list, and the errors of places.

ClaimsUnavailable   the place does not answer, or its list is not the known one; trying again may help
ClaimsUnusable      this place cannot keep a claim list, so nothing was claimed
"""

from typing import Protocol, TypeAlias

from elastane.common.errors import BadInput, ElastaneError
from elastane.run.machines.claims.records import Unreadable

Content: TypeAlias = bytes | Unreadable
"""The bytes of a slot, or why there are none."""


class ClaimsUnavailable(ElastaneError):
    pass


class ClaimsUnusable(BadInput):
    pass


class Place(Protocol):
    """A place that keeps the contents of slots. All methods may be called by several threads and processes.

    They raise only `ClaimsUnavailable` and `ClaimsUnusable`. They may block; `ClaimList` bounds their time.
    """

    @property
    def where(self) -> str:
        """The path or URL, as error messages name it."""
        ...

    def create(self, slot: int, content: bytes) -> bool:
        """Write the content of a slot if it has none; it is whole and durable when this returns.

        After an error the outcome is unknown: the content may still appear.

        Returns:
            True: written. False: the slot had a content, perhaps this one from an earlier call.
        """
        ...

    def read(self, first_slot: int) -> tuple[Content, ...]:
        """Return the contents of slots from ``first_slot`` on, up to the first slot without a content."""
        ...

    def prove_writable(self) -> None:
        """Prove that slots can be created here, and that none can be created twice. Creates no slot."""
        ...
