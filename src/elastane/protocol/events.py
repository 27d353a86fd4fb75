"""What a shell tells a `elastane.protocol.member_machine.MemberMachine`."""

from typing import Literal, TypeAlias

import msgspec

from elastane.api.membership import Generation
from elastane.protocol import messages

RoundKind: TypeAlias = Literal["train", "evaluate", "settle"]
"""Of a round."""


class GenerationProposed(msgspec.Struct, frozen=True):
    """The coordinator proposes a generation."""

    generation: Generation


class RoundEntered(msgspec.Struct, frozen=True):
    """The training thread wants to begin the next round.

    Args:
        kind: of the round. A worker without state may only enter training.
        size: virtual ranks of the round.
        checkpoint: the state after this round is to be kept.
    """

    kind: RoundKind
    size: int
    checkpoint: bool = False


class Computed(msgspec.Struct, frozen=True):
    """A virtual rank is done."""

    leaf: messages.Leaf


class PartialSumsFinal(msgspec.Struct, frozen=True):
    """My partial sums of ``blocks`` are final, as far as ``assignment`` (of `Compute`) goes."""

    assignment: int
    blocks: tuple[int, ...]
    parts: tuple[messages.PartialSum, ...]


class Measured(msgspec.Struct, frozen=True):
    """The answer to `Measure`; ``replicated`` as in `elastane.protocol.messages.Vote`."""

    ticket: int
    norms: dict[int, float]
    digests: dict[int, tuple[str, str]]
    replicated: dict[str, str] = {}


class Applied(msgspec.Struct, frozen=True):
    """The optimizer has run for the committed round; the state may be read again."""


class Received(msgspec.Struct, frozen=True):
    """A message from a peer."""

    sender: int
    message: messages.AnyPeerMessage


class ConnectionLost(msgspec.Struct, frozen=True):
    """The connection to a peer broke."""

    peer: int


class StopRequested(msgspec.Struct, frozen=True):
    """The run should stop at the next commit."""


class CheckpointRequested(msgspec.Struct, frozen=True):
    """Keep the state, once, of some step after ``after``."""

    after: int


class SnapshotTaken(msgspec.Struct, frozen=True):
    """The answer to `Snapshot`: a copy of what it named is made."""

    ticket: int


class StorageRefused(msgspec.Struct, frozen=True):
    """Storage has refused my part of a checkpoint, or (``refused`` False) has taken it after all."""

    refused: bool


class RewriteRequested(msgspec.Struct, frozen=True):
    """The last state must be written once more, by these ``writers``: others could not write their parts."""

    writers: tuple[int, ...]


Event: TypeAlias = (
    GenerationProposed
    | RoundEntered
    | Computed
    | PartialSumsFinal
    | Measured
    | Applied
    | Received
    | ConnectionLost
    | StopRequested
    | CheckpointRequested
    | SnapshotTaken
    | StorageRefused
    | RewriteRequested
)
