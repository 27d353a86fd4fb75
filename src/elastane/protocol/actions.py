"""What a `elastane.protocol.member_machine.MemberMachine` wants done; a shell carries it out, in order."""

from typing import TypeAlias

import msgspec

from elastane.protocol import messages


class Send(msgspec.Struct, frozen=True):
    """Send a message; connect first if need be. Payloads, if the transport has any, are the shell's."""

    peer: int
    message: messages.AnyPeerMessage


class SendState(msgspec.Struct, frozen=True):
    """Send `State` with what ``fetch`` asks for; the state is that of ``fetch.committed`` now."""

    peer: int
    fetch: messages.Fetch


class LoadState(msgspec.Struct, frozen=True):
    """Take over the payload of this message."""

    peer: int
    state: messages.State


class Reduce(msgspec.Struct, frozen=True):
    """Sum these blocks over all parts, mine included, into my sums."""

    blocks: tuple[int, ...]
    parts: dict[int, tuple[messages.PartialSum, ...]]


class TakeSums(msgspec.Struct, frozen=True):
    """Copy whole sums of these blocks from a peer's sums into mine."""

    peer: int
    blocks: tuple[int, ...]


class TakeValues(msgspec.Struct, frozen=True):
    """Copy published values of these units from a peer."""

    peer: int
    units: tuple[int, ...]


class BeginRound(msgspec.Struct, frozen=True):
    """A round is mine to compute in: its number, the step it belongs to, how many members there are.

    ``cursors`` says where each virtual rank's stream stands, as of the last committed step.
    """

    round: int
    step: int
    generation: int
    workers: int
    cursors: dict[int, str] = {}


class Compute(msgspec.Struct, frozen=True):
    """Compute these virtual ranks too; ``assignment`` numbers the whole of what I am to compute."""

    virtual_ranks: tuple[int, ...]
    assignment: int


class Measure(msgspec.Struct, frozen=True):
    """Answer `Measured`: norms of the sums of some blocks, digests of the state of others."""

    ticket: int
    norms: tuple[int, ...]
    digests: tuple[int, ...]


class TakeSnapshot(msgspec.Struct, frozen=True):
    """Copy the state of these blocks as it is after ``step``, then say `SnapshotTaken`.

    Nothing is applied before all have: the copies of all ``writers`` together are a checkpoint. They are
    written once this round has committed; a later `TakeSnapshot` replaces one that has not. A copy of the
    ``settled`` state, after the last round, is written at once; without ``blocks``, the writers do not have
    all of the state between them.
    """

    ticket: int
    step: int
    blocks: tuple[int, ...]
    writers: tuple[int, ...]
    settled: bool = False


class RestoreState(msgspec.Struct, frozen=True):
    """Read these units from the checkpoint the run begins with, then say `Received` from `STORE`."""

    generation: int
    values: tuple[int, ...]
    states: tuple[int, ...]


class CommitRound(msgspec.Struct, frozen=True):
    """The round is committed: apply it to the units I hold, then say `Applied`."""

    outcome: messages.RoundOutcome
    held: frozenset[int]
    healthy: bool


class ReleaseScript(msgspec.Struct, frozen=True):
    """Release the script after a training step: it may change values, as no peer reads mine any more."""


class LeaveTraining(msgspec.Struct, frozen=True):
    """I am not in the generation that begins now; I still serve state until dismissed."""


class EndProcess(msgspec.Struct, frozen=True):
    """End this process: its script cannot follow those of the others. Another worker takes its place."""


class ReportLostPeer(msgspec.Struct, frozen=True):
    """Tell the coordinator that a peer is lost."""

    peer: int
    generation: int


class FailLostState(msgspec.Struct, frozen=True):
    """Some units have no holder left."""

    units: tuple[int, ...]


class FailDisagreement(msgspec.Struct, frozen=True):
    """The scripts of two workers contradict each other; the round cannot commit."""

    why: str


class FailDivergence(msgspec.Struct, frozen=True):
    """Two copies of the state differ; the round cannot commit."""

    why: str


Action: TypeAlias = (
    Send
    | SendState
    | LoadState
    | Reduce
    | TakeSums
    | TakeValues
    | BeginRound
    | Compute
    | Measure
    | TakeSnapshot
    | RestoreState
    | CommitRound
    | ReleaseScript
    | LeaveTraining
    | EndProcess
    | ReportLostPeer
    | FailLostState
    | FailDisagreement
    | FailDivergence
)
