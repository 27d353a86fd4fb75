"""The records of a claim list, as JSON. They are read without trust: other programs may have written them."""

import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, TypeAlias

import msgspec

from elastane.common.bounds import Count, Moment
from elastane.common.errors import BadInput
from elastane.common.untrusted_data import Decoder, Malformed
from elastane.run.connections.endpoint import CoordinatorEndpoint
from elastane.run.nouns.checkpoints import WrittenFile
from elastane.run.nouns.records import RunEnd

LARGEST_RECORD_BYTES = 64 << 10
"""The size limit of one record. A generation of 4096 workers has less than half of that."""
MOST_MEMBERS = 8192
LONGEST_TEXT, LONGEST_TRACEBACK = 1000, 4000
"""Of the texts of an outcome, in characters."""

Nonce: TypeAlias = Annotated[str, msgspec.Meta(pattern=r"\A[0-9a-f]{32}\Z")]
Claimant: TypeAlias = Annotated[str, msgspec.Meta(min_length=1, max_length=256)]
TermNumber: TypeAlias = Annotated[int, msgspec.Meta(ge=1, le=10**9)]


class TermClaim(msgspec.Struct, frozen=True, kw_only=True, tag="term", tag_field="kind"):
    """The claim of a coordinator that it is the one in charge.

    Args:
        claimant: names the process in messages: host and process id.
        endpoint: address of the coordinator and its machine; None: as in the run directory.
        nonce: of this claim, from `make_nonce`; it tells a claimant whether a record is its own.
        time: seconds since 1970 by the claimant's clock; only for people.
    """

    number: TermNumber
    claimant: Claimant
    endpoint: CoordinatorEndpoint | None = None
    nonce: Nonce
    time: Moment


class GenerationClaim(msgspec.Struct, frozen=True, kw_only=True, tag="generation", tag_field="kind"):
    """The claim of a coordinator that an unplanned generation is the next one.

    Args:
        nonce: as in `TermClaim`.
    """

    number: Count
    term: TermNumber
    members: Annotated[tuple[Count, ...], msgspec.Meta(max_length=MOST_MEMBERS)]
    nonce: Nonce


class OutcomeClaim(msgspec.Struct, frozen=True, kw_only=True, tag="outcome", tag_field="kind"):
    """The claim of a coordinator that the attempt is over, with this outcome. The first one is final.

    Args:
        event: the kind of the event that records it.
        code: exit code of the run.
        why: the reason, for people; shortened if it is long.
        cause: "coordinator", a worker, the script or a user.
        traceback: of an error, perhaps shortened.
        lost: every copy of some state is lost.
        files: the files of the finished model, by name; empty also if their list is too long for a record.
        nonce: as in `TermClaim`.
    """

    event: RunEnd
    term: TermNumber
    code: Annotated[int, msgspec.Meta(ge=0, le=255)]
    why: Annotated[str, msgspec.Meta(max_length=LONGEST_TEXT)] = ""
    cause: Annotated[str, msgspec.Meta(max_length=LONGEST_TEXT)] = ""
    traceback: Annotated[str, msgspec.Meta(max_length=LONGEST_TRACEBACK)] = ""
    lost: bool = False
    files: Mapping[str, WrittenFile] = {}
    nonce: Nonce


Decision: TypeAlias = GenerationClaim | OutcomeClaim
"""What at most one of several coordinators may decide."""

Record: TypeAlias = TermClaim | Decision


@dataclass(frozen=True, slots=True)
class Unreadable:
    """A content that is not a record. It holds its slot all the same.

    Args:
        why: one line that completes a sentence about the record.
    """

    why: str


@dataclass(frozen=True, slots=True)
class HeldSlot:
    """A slot, numbered from 1, and the record that holds it."""

    slot: int
    record: Record | Unreadable

    def holds(self, record: Record) -> bool:
        """Tell whether this very claim holds the slot, and not one of another claimant."""
        return not isinstance(self.record, Unreadable) and self.record.nonce == record.nonce


_decode: Decoder[Record] = Decoder(Record, at_most_bytes=LARGEST_RECORD_BYTES)


def make_nonce() -> str:
    """Make the nonce of one claim, at random."""
    return secrets.token_hex(16)


def encode_record(record: Record) -> bytes:
    """Encode a record, without a newline.

    Raises:
        BadInput: no reader would accept it.
    """
    content = msgspec.json.encode(record)
    decoded = decode_content(content)
    if isinstance(decoded, Unreadable):
        raise BadInput(
            f"this record cannot be claimed with: {decoded.why}",
            means="every reader of the claim list would refuse it, so nothing was written",
        )
    return content


def decode_content(content: bytes | Unreadable) -> Record | Unreadable:
    """Decode the content of a slot; say why if it is not a record."""
    if isinstance(content, Unreadable):
        return content
    try:
        return _decode(content)
    except Malformed as error:
        return Unreadable(str(error) if content else "it is empty")
