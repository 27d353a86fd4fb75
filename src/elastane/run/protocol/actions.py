"""The actions of a `elastane.run.protocol.member_machine.MemberMachine`; a shell performs them in order.

Those that read the memory of peers are queued: the shell issues them in order and answers each with an event
when it has ended. They may end in any order, long after later actions.
"""

from typing import TypeAlias

import msgspec

from elastane.run.nouns.checkpoints import UNORDERED, WriteAttempt
from elastane.run.protocol import messages
from elastane.run.protocol.spot_checks import Finding


class Send(msgspec.Struct, frozen=True):
    """Send a message, after connecting if necessary. The shell adds the payload, if the transport has one."""

    peer: int
    message: messages.AnyPeerMessage


class SendState(msgspec.Struct, frozen=True):
    """Answer ``fetch`` with a `State`; the present state is that after ``fetch.committed``."""

    peer: int
    fetch: messages.Fetch


class LoadState(msgspec.Struct, frozen=True, tag=True):
    """Copy the payload of this message into the state, then answer `StateLoaded`."""

    peer: int
    state: messages.State


class Reduce(msgspec.Struct, frozen=True, tag=True):
    """Sum all partial sums of these blocks, its own included, into its whole sums; then answer `Reduced`."""

    generation: int
    blocks: tuple[int, ...]
    parts: dict[int, tuple[messages.PartialSum, ...]]


class MergeSums(msgspec.Struct, frozen=True):
    """Merge the partial sums of this worker's node, its own included, then answer `SumsMerged`.

    The shell must not add into a slot of a virtual rank: a death can void the merged sums.
    """

    generation: int
    blocks: tuple[int, ...]
    parts: dict[int, tuple[messages.PartialSum, ...]]


class TakeSums(msgspec.Struct, frozen=True, tag=True):
    """Copy whole sums of these blocks from a peer, then answer `SumsTaken`."""

    generation: int
    peer: int
    blocks: tuple[int, ...]


class TakeValues(msgspec.Struct, frozen=True, tag=True):
    """Copy published values of these units from a peer, then answer `ValuesTaken`."""

    generation: int
    peer: int
    units: tuple[int, ...]


class BeginRound(msgspec.Struct, frozen=True, tag=True):
    """Begin to compute a round.

    Args:
        workers: the number of its members.
        cursors: the position of each virtual rank's stream after the last committed step.
    """

    round: int
    step: int
    generation: int
    workers: int
    cursors: dict[int, str] = {}


class Compute(msgspec.Struct, frozen=True, tag=True):
    """Compute these virtual ranks too.

    Args:
        assignment: the number of the new assignment.
        checked: the virtual rank of the step's spot check, with fingerprints in its results; None: none.
        left_out: those of all virtual ranks that the round leaves out: they have no samples, and change
            nothing.
    """

    virtual_ranks: tuple[int, ...]
    assignment: int
    checked: int | None = None
    left_out: frozenset[int] = frozenset()


class Recompute(msgspec.Struct, frozen=True):
    """Compute a virtual rank for a spot check, add nothing to the sums, then answer `Recomputed`."""

    virtual_rank: int


class Measure(msgspec.Struct, frozen=True, tag=True):
    """Compute norms of the sums of some blocks and digests of the state of others; answer `Measured`."""

    request: int
    norms: tuple[int, ...]
    digests: tuple[int, ...]


class TakeSnapshot(msgspec.Struct, frozen=True, tag=True):
    """Copy the state of these blocks after ``step``, then answer `SnapshotTaken`.

    No worker applies the round before all have copied: the copies of all ``writers`` together are a
    checkpoint. The shell writes the copy after this round has committed; before that a later `TakeSnapshot`
    replaces it. The shell writes a copy of the settled state, after the last round, at once: the coordinator
    has ordered it, as this ``attempt``. A settled snapshot without ``blocks`` means that this worker lacks
    some of those that it should write.
    """

    request: int
    step: int
    blocks: tuple[int, ...]
    writers: tuple[int, ...]
    attempt: WriteAttempt = UNORDERED

    @property
    def settled(self) -> bool:
        return self.attempt != UNORDERED


class RestoreState(msgspec.Struct, frozen=True, tag=True):
    """Read these units from the checkpoint of the run's start, then answer `Received` from `STORE`."""

    generation: int
    committed: int
    values: tuple[int, ...]
    states: tuple[int, ...]


class CommitRound(msgspec.Struct, frozen=True, tag=True):
    """Apply the committed round to the units that this worker holds, then answer `Applied`."""

    outcome: messages.RoundOutcome
    held: frozenset[int]
    healthy: bool


class ReleaseScript(msgspec.Struct, frozen=True, tag=True):
    """Let the script continue after a training step; it may change values, as no peer reads them any more."""


class LeaveTraining(msgspec.Struct, frozen=True, tag=True):
    """Leave training: this worker is not in the generation that begins. It sends state until dismissed."""


class EndProcess(msgspec.Struct, frozen=True):
    """End this process: its script cannot catch up with the others. Another worker replaces it."""


class ReportLostPeer(msgspec.Struct, frozen=True):
    """Report to the coordinator that a peer is lost."""

    peer: int


class FailLostState(msgspec.Struct, frozen=True):
    """Fail: no worker holds some units any more."""

    units: tuple[int, ...]


class FailDisagreement(msgspec.Struct, frozen=True):
    """Fail: the scripts of two workers contradict each other, so the round cannot commit."""

    why: str


class FailDivergence(msgspec.Struct, frozen=True):
    """Fail: two copies of the state differ, so the round cannot commit."""

    why: str


class FailSpotCheck(msgspec.Struct, frozen=True):
    """End the worker that a spot check has found wrong; if it is not known which one is, fail."""

    finding: Finding


Action: TypeAlias = (
    Send
    | SendState
    | LoadState
    | Reduce
    | MergeSums
    | TakeSums
    | TakeValues
    | BeginRound
    | Compute
    | Recompute
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
    | FailSpotCheck
)
