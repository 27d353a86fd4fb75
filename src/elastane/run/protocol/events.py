"""The events that a shell passes to a `elastane.run.protocol.member_machine.MemberMachine`."""

from typing import Literal, TypeAlias

import msgspec

from elastane.run.nouns.checkpoints import WriteAttempt
from elastane.run.nouns.membership import Generation
from elastane.run.protocol import messages

RoundKind: TypeAlias = Literal["train", "evaluate", "settle"]
"""The kind of a round."""


class GenerationProposed(msgspec.Struct, frozen=True):
    """The coordinator proposes a generation."""

    generation: Generation


class RoundEntered(msgspec.Struct, frozen=True, tag=True):
    """The training thread has entered the next round.

    Args:
        kind: the kind of the round. A worker without state may only enter training.
        checkpoint: the script requests a checkpoint of the state after this round.
    """

    kind: RoundKind
    size: int
    checkpoint: bool = False


class Computed(msgspec.Struct, frozen=True, tag=True):
    """A virtual rank is computed."""

    leaf: messages.Leaf


class Recomputed(msgspec.Struct, frozen=True):
    """The answer to `Recompute`; without fingerprints, the results are not compared."""

    leaf: messages.Leaf


class PartialSumsFinal(msgspec.Struct, frozen=True, tag=True):
    """Some partial sums of ``blocks`` are final for this ``assignment`` (see `Compute`).

    Each one is named once: when all virtual ranks of its node of the tree are computed, or later.
    """

    assignment: int
    blocks: tuple[int, ...]
    parts: tuple[messages.PartialSum, ...]


class SumsMerged(msgspec.Struct, frozen=True, tag=True):
    """The answer to `MergeSums`: the ``parts`` that are left of ``blocks``, and their slots."""

    generation: int
    blocks: tuple[int, ...]
    parts: tuple[messages.PartialSum, ...]


class Reduced(msgspec.Struct, frozen=True, tag=True):
    """The answer to `Reduce`: this worker has the whole sums of ``blocks``."""

    generation: int
    blocks: tuple[int, ...]


class SumsTaken(msgspec.Struct, frozen=True, tag=True):
    """The answer to `TakeSums`: this worker has the whole sums of ``blocks``, which ``peer`` had."""

    generation: int
    peer: int
    blocks: tuple[int, ...]


class ValuesTaken(msgspec.Struct, frozen=True, tag=True):
    """The answer to `TakeValues`: this worker has the values of ``units``, which ``peer`` has published."""

    generation: int
    peer: int
    units: tuple[int, ...]


class StateLoaded(msgspec.Struct, frozen=True, tag=True):
    """The answer to `LoadState`: this worker has the values and the optimizer state in ``state``."""

    state: messages.State


class Measured(msgspec.Struct, frozen=True, tag=True):
    """The answer to `Measure`; ``replicated`` as in `elastane.run.protocol.messages.Vote`.

    Args:
        copies: digests of values that other processes of the worker have too, by name.
    """

    request: int
    norms: dict[int, tuple[float, ...]]
    digests: dict[int, tuple[str, str]]
    replicated: dict[str, str] = {}
    copies: dict[str, str] = {}


class Applied(msgspec.Struct, frozen=True, tag=True):
    """The optimizer has run for the committed round; peers may read the state again."""


class Received(msgspec.Struct, frozen=True):
    """A message from a peer."""

    sender: int
    message: messages.AnyPeerMessage


class ConnectionLost(msgspec.Struct, frozen=True):
    """The connection to a peer broke."""

    peer: int


class ScriptEnded(msgspec.Struct, frozen=True, tag=True):
    """The script has ended after the loop over the steps: it enters no further round."""


class StopRequested(msgspec.Struct, frozen=True):
    """The coordinator requests a stop at the next commit."""


class CheckpointRequested(msgspec.Struct, frozen=True):
    """The coordinator requests one checkpoint of a step after ``after``."""

    after: int


class SnapshotTaken(msgspec.Struct, frozen=True, tag=True):
    """The answer to `TakeSnapshot`: the copy is complete."""

    request: int


class StorageRefused(msgspec.Struct, frozen=True, tag=True):
    """Storage has refused this worker's part of a checkpoint or, with ``refused`` False, has accepted it."""

    refused: bool


class RewriteRequested(msgspec.Struct, frozen=True):
    """This worker must write some blocks of the last state, because others could not write their parts.

    Args:
        writers: all workers that write a part of it.
        blocks: the blocks that this worker writes.
        attempt: the attempt; this worker takes part in it only once, and in none before it later.
    """

    writers: tuple[int, ...]
    blocks: tuple[int, ...]
    attempt: WriteAttempt


Event: TypeAlias = (
    GenerationProposed
    | RoundEntered
    | Computed
    | Recomputed
    | PartialSumsFinal
    | SumsMerged
    | Reduced
    | SumsTaken
    | ValuesTaken
    | StateLoaded
    | Measured
    | Applied
    | Received
    | ConnectionLost
    | ScriptEnded
    | StopRequested
    | CheckpointRequested
    | SnapshotTaken
    | StorageRefused
    | RewriteRequested
)
