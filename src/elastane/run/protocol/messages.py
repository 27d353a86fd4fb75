"""The messages between workers, and the values that they carry.

Every message names its generation. A member drops messages of older generations, and keeps messages of newer
ones until it learns of that generation itself.
"""

from typing import TypeAlias

import msgspec

from elastane.run.nouns.membership import Generation
from elastane.run.protocol.tree import Span


class Leaf(msgspec.Struct, frozen=True, array_like=True):
    """The results of one virtual rank besides its gradient.

    Args:
        worker: the worker that computed it.
        loss: the user's loss of its samples: their mean or, if weighted, their sum.
        weight: the weight of this loss in the step's loss: the number of samples, or the user's weight.
        checksum: the sum, modulo 2**64, of `hash_sample` over the loaded samples.
        untouched: the numbers of parameters without a gradient.
        sums: the sums of an evaluation, in fp64.
        weighted: its gradient is that of a sum, which the step divides by its weight.
        cursor: the position of its stream after its samples; None: the stream has not moved.
        fingerprints: the digest of each parameter's gradient, then of the change of each buffer; empty unless
            a spot check compares them.
    """

    virtual_rank: int
    worker: int
    loss: float = 0.0
    weight: float = 0.0
    samples: int = 0
    checksum: int = 0
    untouched: tuple[int, ...] = ()
    sums: dict[str, float] = {}
    weighted: bool = False
    cursor: str | None = None
    fingerprints: tuple[str, ...] = ()


class PartialSum(msgspec.Struct, frozen=True, array_like=True):
    """A partial sum of gradients over some virtual ranks, and its slot on its worker."""

    spans: tuple[Span, ...]
    slot: int


class RoundOutcome(msgspec.Struct, frozen=True, array_like=True):
    """The result of a committed round; the same value on every worker.

    Args:
        step: the number of training steps committed so far, this round included.
        loss: the weighted mean over the virtual ranks.
        weight: the sum of the weights.
        checksum: the checksum over the loaded samples, modulo 2**64.
        untouched: the numbers of parameters without a gradient from any virtual rank.
        sums: the sums of an evaluation.
        norm_squared: the gradient's squared norm before clipping and division by ``weight``; None: not
            needed.
        digests: the digests per block of parameters and optimizer state after the last step; empty unless
            due.
        next_generation: the planned generation that begins at the next step; 0: none.
        stop: the run stops after this round.
        shares: the virtual ranks that each worker computed.
        weighted: gradients are those of sums, which the step divides by ``weight``.
        checkpoint: workers copy the state after the last training step before they apply the next one.
        complete: the members that held all state that they should.
        filled: the number of virtual ranks with samples.
        cursors: the position of each virtual rank's stream; empty without streams.
        refused: the members that could not write their last part of a checkpoint.
        agreed: the number of virtual ranks that another worker has computed once more, with the same bits.
        left_out: the virtual ranks of absent sites, which no worker has computed.
    """

    round: int
    step: int
    loss: float
    weight: float
    samples: int
    checksum: int
    untouched: tuple[int, ...]
    sums: dict[str, float]
    norm_squared: float | None
    digests: dict[int, tuple[str, str]]
    next_generation: int
    stop: bool
    shares: dict[int, tuple[Span, ...]]
    weighted: bool = False
    checkpoint: bool = False
    complete: tuple[int, ...] = ()
    filled: int = 0
    cursors: dict[int, str] = {}
    refused: tuple[int, ...] = ()
    agreed: int = 0
    left_out: tuple[Span, ...] = ()


BEGINNING = RoundOutcome(
    round=0,
    step=0,
    loss=0.0,
    weight=0.0,
    samples=0,
    checksum=0,
    untouched=(),
    sums={},
    norm_squared=None,
    digests={},
    next_generation=0,
    stop=False,
    shares={},
)
"""The outcome of round 0, before any training; with another ``step``, the outcome of a checkpoint."""


class PeerMessage(msgspec.Struct, frozen=True, kw_only=True, tag=True, omit_defaults=True):
    """Base class: ``generation`` is the number of the generation that the message belongs to."""

    generation: int


class SpotCheck(msgspec.Struct, frozen=True):
    """One check: ``worker`` computes ``virtual_rank`` once more, which another one computes for the step."""

    virtual_rank: int
    worker: int


class Status(PeerMessage, frozen=True, kw_only=True):
    """The state of a worker when a generation begins; every member computes the same from all statuses.

    Args:
        committed: the last committed round; -1: the sender has no state at all yet.
        outcome: the outcome of that round.
        assigned: the virtual ranks of the next round that it has computed, or computes in any case.
        leaves: all leaves of the next round that it knows, its own and those from votes.
        spot_check: the check of the next round; None: the round has none, or the sender has not begun it.
        rooted: the blocks of which it has the whole sum.
        held: the units of which it has the optimizer state, after ``committed``.
        keeps: the held units that it still holds if the next round was committed with its vote.
        behind: the units of which it lacks the values, after ``committed``.
        released: its script has continued since ``committed``, so its values may have changed.
        left_out: the virtual ranks that the next round leaves out, as far as the sender has begun it.
    """

    worker: int
    committed: int
    outcome: RoundOutcome | None = None
    assigned: tuple[Span, ...] = ()
    leaves: tuple[Leaf, ...] = ()
    spot_check: SpotCheck | None = None
    rooted: tuple[Span, ...] = ()
    held: tuple[Span, ...] = ()
    keeps: tuple[Span, ...] = ()
    behind: tuple[Span, ...] = ()
    released: bool = False
    left_out: tuple[Span, ...] = ()


class LeavesReady(PeerMessage, frozen=True, kw_only=True):
    """The sender has computed all its virtual ranks of a round that may leave out sites."""

    round: int
    leaves: tuple[Leaf, ...]


class PartialSumsReady(PeerMessage, frozen=True, kw_only=True):
    """Partial sums of ``blocks`` are final: the sender's, for their owner or the leader of the sender's node.

    A worker announces each node of the tree that it has when this is complete, so a block may come again.
    A leader announces to the owner what it has merged: the partial sums of its whole node.
    """

    round: int
    blocks: tuple[int, ...]
    parts: tuple[PartialSum, ...]


class SumsReady(PeerMessage, frozen=True, kw_only=True):
    """The sender, the owner of ``blocks`` or a relay, has their whole sums."""

    round: int
    blocks: tuple[int, ...]


class Vote(PeerMessage, frozen=True, kw_only=True):
    """The sender has every sum that it needs, so the round may commit.

    Args:
        leaves: the leaves of the virtual ranks that the sender computed.
        norms: the sum of squares of the summed gradient, per block that the sender owns: the exact sum of
            these numbers.
        digests: the digests of the state before this round, per block that the sender audits or witnesses.
        ready: the planned generation for which the sender is ready; 0: none.
        stop: the sender was asked to stop.
        checkpoint: the coordinator, or the script, requested a checkpoint after this round.
        complete: the sender holds all state that it should.
        kind: the kind of the round, as the sender's script entered it.
        replicated: the digests of values outside the blocks that all workers must share, by name.
        refused: storage refused the sender's last part of a checkpoint: others should write the next one.
        recomputed: the results of spot checks that the sender has made, in their order. If results differ, it
            votes again with those of further ones.
        unchecked: whole sums may have a result that a spot check should have compared, of a worker that died
            before, or one that differed from another when the membership changed.
    """

    round: int
    leaves: tuple[Leaf, ...]
    norms: dict[int, tuple[float, ...]] = {}
    digests: dict[int, tuple[str, str]] = {}
    ready: int = 0
    stop: bool = False
    checkpoint: bool = False
    complete: bool = False
    kind: str = "train"
    replicated: dict[str, str] = {}
    refused: bool = False
    recomputed: tuple[Leaf, ...] = ()
    unchecked: bool = False


class Published(PeerMessage, frozen=True, kw_only=True):
    """The sender, a holder or a relay, has the values of ``units`` after ``round``."""

    round: int
    units: tuple[int, ...]


class Current(PeerMessage, frozen=True, kw_only=True):
    """The sender has the values of every unit after ``round`` and no longer reads those of a peer."""

    round: int


class Fetch(PeerMessage, frozen=True, kw_only=True):
    """Request state after round ``committed``: the values of some units, the optimizer state of others.

    Args:
        committed: the last committed round of the sender.
        values: the units of which it requests the values.
        states: the units of which it requests the optimizer state.
        released: the sender needs the state after the script's code that follows the round; otherwise the
            state right after the round, because the sender's script has yet to run that code.
    """

    committed: int
    values: tuple[int, ...] = ()
    states: tuple[int, ...] = ()
    released: bool = False

    @property
    def needs_reports(self) -> bool:
        """Whether the sender may lack the report of the last step: a worker that joins has not made it."""
        return self.released and bool(self.values)


class State(PeerMessage, frozen=True, kw_only=True):
    """The answer to a `Fetch`; the bytes are the payload of the frame.

    Args:
        committed: the round of the `Fetch`.
        values: the units with values in the payload.
        states: the units with optimizer state in the payload.
        reports: the reports of steps that the coordinator may not have, for a worker that takes the values of
            the last of these steps and has made none of them; the protocol does not read them.
    """

    committed: int
    values: tuple[int, ...] = ()
    states: tuple[int, ...] = ()
    reports: bytes = b""


class FetchProposal(PeerMessage, frozen=True, kw_only=True):
    """Request the proposal of this generation: the sender has got a `Status` of it, but no proposal."""


class Proposal(PeerMessage, frozen=True, kw_only=True):
    """The answer to a `FetchProposal`; the receiver takes it as from the coordinator."""

    proposed: Generation


AnyPeerMessage: TypeAlias = (
    Status
    | LeavesReady
    | PartialSumsReady
    | SumsReady
    | Vote
    | Published
    | Current
    | Fetch
    | State
    | FetchProposal
    | Proposal
)
