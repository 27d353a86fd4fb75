"""The messages between process 0 of a gang and its other processes."""

from typing import TypeAlias

import msgspec

from elastane.common.untrusted_data import Decoder
from elastane.run.nouns.control import CheckpointPart
from elastane.run.nouns.spec import Probe
from elastane.run.protocol import actions
from elastane.run.protocol.gangs import Result
from elastane.run.protocol.messages import AnyPeerMessage

LARGEST_BYTES = 64 << 20


class Plane(msgspec.Struct, frozen=True):
    """The memory of one process that the process of the same number in other gangs reads.

    Args:
        pid: of the process.
        sums: the descriptor, in that process, of the arena of summed gradients.
        values: the descriptor, in that process, of the arena of parameters.
        frozen: likewise, of the arena of frozen parameters; negative: it has no such parts.
        slots: the descriptor of each part of a message about partial sums.
        state: the address of the shared message with the state that a peer has fetched; empty: none.
    """

    pid: int
    sums: int
    values: int
    frozen: int = -1
    slots: tuple[int, ...] = ()
    state: bytes = b""


class Introduced(msgspec.Struct, frozen=True, tag=True):
    """The process has laid out its state, in this memory."""

    plane: Plane


class Rehearsed(msgspec.Struct, frozen=True, tag=True):
    """The process has rehearsed; ``probe`` as in `elastane.run.nouns.spec.Pinned`."""

    probe: Probe | None


class Posted(msgspec.Struct, frozen=True, tag=True):
    """The process has a result for the protocol."""

    result: Result


class Delivered(msgspec.Struct, frozen=True, tag=True):
    """The answer to `Deliver`: the process can read the memory of the message, unless its owner is dead."""

    is_readable: bool


class StatePacked(msgspec.Struct, frozen=True, tag=True):
    """The answer to `PackState`: the address of the shared message."""

    address: bytes


class ScriptFailed(msgspec.Struct, frozen=True, tag=True):
    """The script has failed in the process; ``lost`` as in `elastane.run.nouns.control.WorkerFailed`."""

    traceback: str
    lost: bool


class PartsChanged(msgspec.Struct, frozen=True, tag=True):
    """The progress of the process with its files of checkpoints has changed."""

    parts: tuple[CheckpointPart, ...]


FromProcess: TypeAlias = (
    Introduced | Rehearsed | Posted | Delivered | StatePacked | PartsChanged | ScriptFailed
)


class Deliver(msgspec.Struct, frozen=True, tag=True):
    """A peer has sent a message; the process of this number there has the memory that belongs to it.

    Args:
        is_answered: answer `Delivered`; otherwise all processes have mapped this memory already.
    """

    sender: int
    message: AnyPeerMessage
    plane: Plane
    is_answered: bool = True


class PackState(msgspec.Struct, frozen=True, tag=True):
    """Pack values of some units and optimizer state of others for a peer, then answer `StatePacked`."""

    peer: int
    values: tuple[int, ...]
    states: tuple[int, ...]


class EndWorker(msgspec.Struct, frozen=True, tag=True):
    """The worker is dismissed; ``code`` and ``why`` as in `elastane.run.nouns.control.Dismiss`."""

    code: int
    why: str = ""


class FailureTaken(msgspec.Struct, frozen=True, tag=True):
    """The answer to `ScriptFailed`: the failure is reported."""


Action: TypeAlias = (
    actions.LoadState
    | actions.Reduce
    | actions.TakeSums
    | actions.TakeValues
    | actions.BeginRound
    | actions.Compute
    | actions.Measure
    | actions.CommitRound
    | actions.TakeSnapshot
    | actions.RestoreState
    | actions.ReleaseScript
    | actions.LeaveTraining
)
"""An action of the protocol that every process of the gang performs."""
Order: TypeAlias = Action | Deliver | PackState | EndWorker | FailureTaken

encode_message = msgspec.msgpack.Encoder().encode
decode_order: Decoder[Order] = Decoder(Order, format="msgpack", at_most_bytes=LARGEST_BYTES)
decode_from_process: Decoder[FromProcess] = Decoder(
    FromProcess, format="msgpack", at_most_bytes=LARGEST_BYTES
)
decode_planes: Decoder[tuple[Plane, ...]] = Decoder(
    tuple[Plane, ...], format="msgpack", at_most_bytes=LARGEST_BYTES
)
