"""Messages between workers, and the few values they carry.

Every message names its generation; a member drops those of older ones and keeps those of newer ones until it
has heard of that generation itself.
"""

from typing import TypeAlias

import msgspec

from elastane.protocol.tree import Span


class Leaf(msgspec.Struct, frozen=True, array_like=True):
    """What one virtual rank leaves behind besides its gradient.

    Args:
        virtual_rank: which.
        worker: who computed it.
        loss: of its samples, as the user passed it (the mean over its samples, or the sum if weighted).
        weight: of its loss in the step's: samples, or what the user gave.
        samples: how many.
        checksum: sum modulo 2**64 of `hash_sample` over the samples really loaded.
        untouched: parameters that got no gradient, by number.
        sums: what an evaluation added up, in fp64.
        weighted: its gradient is that of a sum, to be divided by the step's weight.
        cursor: where its stream stands after its samples; None: where it stood before.
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
    """A partial sum of gradients over some virtual ranks, and the slot it lies in on its worker."""

    spans: tuple[Span, ...]
    slot: int


class RoundOutcome(msgspec.Struct, frozen=True, array_like=True):
    """What a committed round decided; the same value on every worker.

    Args:
        round: which one.
        step: training steps committed so far, this round included.
        loss: weighted mean over the virtual ranks.
        weight: sum of the weights.
        samples: how many.
        checksum: over the samples really loaded, modulo 2**64.
        untouched: parameters that got no gradient from anybody.
        sums: of an evaluation.
        norm_squared: of the gradient before clipping and division by ``weight``; None unless asked for.
        digests: per block, of parameters and optimizer state after the last step; empty unless due.
        next_generation: planned generation that begins at the next step; 0: none.
        stop: somebody asked to stop after this round.
        shares: who computed what.
        weighted: gradients are of sums, to be divided by ``weight``.
        checkpoint: the state after the last training step is to be kept, before the next one is applied.
        complete: members that held all they should.
        filled: virtual ranks that had samples.
        cursors: where each virtual rank's stream stands; empty without streams.
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
"""Of round 0, before anything was trained; with another ``step``, what a checkpoint stands for."""


class PeerMessage(msgspec.Struct, frozen=True, kw_only=True, tag=True, omit_defaults=True):
    """Base: ``generation`` says which membership the message belongs to."""

    generation: int


class Status(PeerMessage, frozen=True, kw_only=True):
    """Where a worker stands when a generation begins; everyone computes the rest from everyone's.

    Args:
        worker: whose.
        committed: last committed round; -1: it has no state at all yet.
        outcome: of that round.
        claims: virtual ranks of the round after, computed or to be computed whatever happens.
        leaves: all it knows of that round, its own and from votes.
        rooted: blocks whose whole sum it has.
        held: units whose optimizer state it holds as of ``committed``.
        keeps: those of them it will still hold if the round after has been committed with its vote.
        behind: units whose values it lacks as of ``committed``.
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
    """To the owner of ``blocks``: my partial sums of them are final."""

    round: int
    blocks: tuple[int, ...]
    parts: tuple[PartialSum, ...]


class SumsReady(PeerMessage, frozen=True, kw_only=True):
    """From an owner: the whole sums of ``blocks`` are there."""

    round: int
    blocks: tuple[int, ...]


class Vote(PeerMessage, frozen=True, kw_only=True):
    """I have every sum I need; from my side the round may commit.

    Args:
        round: which.
        leaves: of the virtual ranks I computed.
        norms: fp64 sum of squares of the summed gradient, per block I own.
        digests: per block I audit or am a witness of, of the state before this round.
        ready: number of the planned generation I am ready for, 0: none.
        stop: I was asked to stop.
        checkpoint: I was asked for a checkpoint, or the script wants one after this round.
        complete: I hold all I should.
        kind: of the round, as my script entered it.
        replicated: digests of what all workers must have alike and no block holds, by what it is.
        refused: storage refused my last part of a checkpoint, so that others should write the next one.
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
    """From an owner: the values of ``units`` after ``round`` are there."""

    round: int
    units: tuple[int, ...]


class Current(PeerMessage, frozen=True, kw_only=True):
    """The sender has the values of every unit as of ``round`` and no longer reads those of a peer."""

    round: int


class Fetch(PeerMessage, frozen=True, kw_only=True):
    """Request state as of ``committed``: the values of some units, the optimizer state of others.

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
    """The answer to a `Fetch`; the bytes travel as the frame's payload."""

    committed: int
    values: tuple[int, ...] = ()
    states: tuple[int, ...] = ()


AnyPeerMessage: TypeAlias = Status | PartialSumsReady | SumsReady | Vote | Published | Current | Fetch | State
