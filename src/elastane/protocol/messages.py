"""Messages between workers, and the few values they carry.

Every message names its generation. A member drops messages of older generations, and keeps messages of newer
ones until it learns of that generation itself.
"""

from typing import TypeAlias

import msgspec

from elastane.protocol.tree import Span


class Leaf(msgspec.Struct, frozen=True, array_like=True):
    """The results of one virtual rank besides its gradient.

    Args:
        virtual_rank: its number.
        worker: that computed it.
        loss: of its samples, as the user passed it (the mean over its samples, or the sum if weighted).
        weight: of its loss in that of the step: the number of samples, or the weight that the user gave.
        samples: their number.
        checksum: sum modulo 2**64 of `hash_sample` over the samples really loaded.
        untouched: numbers of parameters without a gradient.
        sums: the sums of an evaluation, in fp64.
        weighted: its gradient is that of a sum, to be divided by the step's weight.
        cursor: position of its stream after its samples; None: the stream has not moved.
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


class PartialSum(msgspec.Struct, frozen=True, array_like=True):
    """A partial sum of gradients over some virtual ranks, and its slot on its worker."""

    spans: tuple[Span, ...]
    slot: int


class RoundOutcome(msgspec.Struct, frozen=True, array_like=True):
    """The result of a committed round; the same value on every worker.

    Args:
        round: its number.
        step: training steps committed so far, this round included.
        loss: weighted mean over the virtual ranks.
        weight: sum of the weights.
        samples: their number.
        checksum: over the samples really loaded, modulo 2**64.
        untouched: numbers of parameters without a gradient from any virtual rank.
        sums: the sums of an evaluation.
        norm_squared: of the gradient before clipping and division by ``weight``; None unless asked for.
        digests: per block, of parameters and optimizer state after the last step; empty unless due.
        next_generation: planned generation that begins at the next step; 0: none.
        stop: the run stops after this round.
        shares: virtual ranks that each worker computed.
        weighted: gradients are of sums, to be divided by ``weight``.
        checkpoint: the state after the last training step is copied before the next one is applied.
        complete: members that held all they should.
        filled: number of virtual ranks with samples.
        cursors: position of each virtual rank's stream; empty without streams.
        refused: members that could not write their last part of a checkpoint.
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
"""The outcome of round 0, before any training; with another ``step``, that of a checkpoint."""


class PeerMessage(msgspec.Struct, frozen=True, kw_only=True, tag=True, omit_defaults=True):
    """Base class: ``generation`` is the number of the generation that the message belongs to."""

    generation: int


class Status(PeerMessage, frozen=True, kw_only=True):
    """The state of a worker when a generation begins; every member computes the same from all statuses.

    Args:
        worker: that sends it.
        committed: last committed round; -1: it has no state at all yet.
        outcome: the outcome of that round.
        claims: virtual ranks of the next round that it has computed or computes in any case.
        leaves: all that it knows of the next round, its own and those from votes.
        rooted: blocks that it has the whole sum of.
        held: units that it has the optimizer state of, after ``committed``.
        keeps: those of them that it still holds if the next round was committed with its vote.
        behind: units that it lacks the values of, after ``committed``.
        released: its script has run on since ``committed``, so its values may have changed.
    """

    worker: int
    committed: int
    outcome: RoundOutcome | None = None
    claims: tuple[Span, ...] = ()
    leaves: tuple[Leaf, ...] = ()
    rooted: tuple[Span, ...] = ()
    held: tuple[Span, ...] = ()
    keeps: tuple[Span, ...] = ()
    behind: tuple[Span, ...] = ()
    released: bool = False


class PartialSumsReady(PeerMessage, frozen=True, kw_only=True):
    """To the owner of ``blocks``: the sender's partial sums of them are final."""

    round: int
    blocks: tuple[int, ...]
    parts: tuple[PartialSum, ...]


class SumsReady(PeerMessage, frozen=True, kw_only=True):
    """From the owner of ``blocks``: their whole sums are ready."""

    round: int
    blocks: tuple[int, ...]


class Vote(PeerMessage, frozen=True, kw_only=True):
    """The sender has every sum that it needs; the round may commit.

    Args:
        round: its number.
        leaves: the leaves of the virtual ranks that the sender computed.
        norms: fp64 sum of squares of the summed gradient, per block that the sender owns.
        digests: of the state before this round, per block that the sender audits or is a witness of.
        ready: number of the planned generation that the sender is ready for; 0: none.
        stop: the sender was asked to stop.
        checkpoint: a checkpoint was requested, or the script wants one after this round.
        complete: the sender holds all it should.
        kind: the kind of the round, as the sender's script entered it.
        replicated: digests of values outside the blocks that all workers must share, by name.
        refused: storage refused the sender's last part of a checkpoint: others should write the next one.
    """

    round: int
    leaves: tuple[Leaf, ...]
    norms: dict[int, float] = {}
    digests: dict[int, tuple[str, str]] = {}
    ready: int = 0
    stop: bool = False
    checkpoint: bool = False
    complete: bool = False
    kind: str = "train"
    replicated: dict[str, str] = {}
    refused: bool = False


class Published(PeerMessage, frozen=True, kw_only=True):
    """From an owner: the values of ``units`` after ``round`` are ready."""

    round: int
    units: tuple[int, ...]


class Current(PeerMessage, frozen=True, kw_only=True):
    """The sender has the values of every unit after ``round`` and no longer reads those of a peer."""

    round: int


class Fetch(PeerMessage, frozen=True, kw_only=True):
    """Request state after round ``committed``: the values of some units, the optimizer state of others.

    Args:
        committed: last committed round of the sender.
        values: units.
        states: units.
        released: the sender needs the state as the script's code after that round leaves it; otherwise as the
            round left it, because the sender's script has yet to run that code.
    """

    committed: int
    values: tuple[int, ...] = ()
    states: tuple[int, ...] = ()
    released: bool = False


class State(PeerMessage, frozen=True, kw_only=True):
    """The answer to a `Fetch`; the bytes are the payload of the frame."""

    committed: int
    values: tuple[int, ...] = ()
    states: tuple[int, ...] = ()


AnyPeerMessage: TypeAlias = Status | PartialSumsReady | SumsReady | Vote | Published | Current | Fetch | State
