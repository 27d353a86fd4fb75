"""The outcome of a round, from the votes of all members; it does not depend on the division of work."""

import math
from collections.abc import Iterable, Mapping
from types import MappingProxyType

from elastane.run.protocol.layout import REPLICATED_BLOCK
from elastane.run.protocol.messages import Leaf, RoundOutcome, Vote
from elastane.run.protocol.tree import find_spans


def compute_outcome(
    round_: int,
    step: int,
    leaves: Mapping[int, Leaf],
    votes: Mapping[int, Vote],
    cursors: Mapping[int, str] = MappingProxyType({}),
    left_out: frozenset[int] = frozenset(),
) -> RoundOutcome:
    """Return the outcome of a round for which all members have voted.

    Sums of numbers are rounded once (``math.fsum``), so their order does not matter.

    Args:
        step: the number of training steps committed, with this round.
        leaves: one per virtual rank.
        votes: one per member.
        cursors: the positions of streams before the round; a leaf without a cursor does not move its stream.
        left_out: the virtual ranks that the round leaves out; their leaves have no samples.
    """
    trained = [leaf for leaf in leaves.values() if leaf.weight]
    weight = sum_exactly(leaf.weight for leaf in trained)
    loss = sum_exactly(leaf.loss * leaf.weight for leaf in trained) / weight if weight else 0.0
    untouched = (
        frozenset.intersection(*(frozenset(leaf.untouched) for leaf in trained)) if trained else frozenset()
    )
    terms: dict[str, list[float]] = {}
    for leaf in leaves.values():
        for name, term in leaf.sums.items():
            terms.setdefault(name, []).append(term)
    norms = [square for vote in votes.values() for squares in vote.norms.values() for square in squares]
    is_measured = any(vote.norms for vote in votes.values())
    computed = [leaf for leaf in leaves.values() if leaf.virtual_rank not in left_out]
    readiness = {vote.ready for vote in votes.values()}
    return RoundOutcome(
        round=round_,
        step=step,
        loss=loss,
        weight=weight,
        samples=sum(leaf.samples for leaf in leaves.values()),
        checksum=sum(leaf.checksum for leaf in leaves.values()) % (1 << 64),
        untouched=tuple(sorted(untouched)),
        sums={name: sum_exactly(terms[name]) for name in sorted(terms)},
        norm_squared=_add_squares(norms) if is_measured else None,
        digests=_collect_digests(votes),
        next_generation=readiness.pop() if len(readiness) == 1 else 0,
        stop=any(vote.stop for vote in votes.values()),
        shares={
            worker: find_spans(leaf.virtual_rank for leaf in computed if leaf.worker == worker)
            for worker in sorted({leaf.worker for leaf in computed})
        },
        weighted=any(leaf.weighted for leaf in trained),
        checkpoint=any(vote.checkpoint for vote in votes.values()),
        complete=tuple(sorted(worker for worker, vote in votes.items() if vote.complete)),
        filled=sum(leaf.samples > 0 for leaf in leaves.values()),
        cursors={
            **cursors,
            **{rank: leaf.cursor for rank, leaf in sorted(leaves.items()) if leaf.cursor is not None},
        },
        refused=tuple(sorted(worker for worker, vote in votes.items() if vote.refused)),
        left_out=find_spans(left_out),
    )


def sum_exactly(values: Iterable[float]) -> float:
    """Return the sum, rounded once and the same in every order; not a number if it is not finite.

    `math.fsum` raises for sums that overflow and for opposite infinities, and a script may sum any values.
    """
    try:
        return math.fsum(sorted(values))
    except (OverflowError, ValueError):
        return math.nan


def _collect_digests(votes: Mapping[int, Vote]) -> dict[int, tuple[str, str]]:
    """Return digests per block: of parameters and, from a worker that keeps it, of optimizer state."""
    found: dict[int, tuple[str, str]] = {}
    for _, vote in sorted(votes.items()):
        for block, pair in sorted(vote.digests.items()):
            if pair[1] or block not in found:
                found[block] = pair
    return found


def _add_squares(squares: list[float]) -> float:
    """Return the sum; infinite or not a number if a square is, or if the sum has no finite double."""
    try:
        return math.fsum(squares)
    except OverflowError:
        return math.inf


def find_disagreement(
    worker: int, kind: str, replicated: Mapping[str, str] | None, votes: Mapping[int, Vote]
) -> str:
    """Describe how another worker's script differs from this one's; empty if no vote shows a difference.

    Args:
        kind: the kind of its round.
        replicated: the digests of values that all workers must share, by name; None before its vote.
    """
    for other, vote in sorted(votes.items()):
        if vote.kind != kind:
            return f"worker {worker} is in a round to {kind}, worker {other} in one to {vote.kind}"
        if replicated is not None and vote.replicated != replicated:
            names = sorted(replicated.keys() | vote.replicated.keys())
            what = next(name for name in names if replicated.get(name) != vote.replicated.get(name))
            return f"worker {worker} and worker {other} differ in {what}"
    return ""


def find_divergence(step: int, votes: Mapping[int, Vote]) -> str:
    """Describe where two copies of the state differ, by their digests; empty if no vote shows a difference.

    Args:
        step: the digests describe the state after this step.
    """
    known: dict[int, tuple[int, tuple[str, str]]] = {}
    for worker, vote in sorted(votes.items()):
        for block, pair in sorted(vote.digests.items()):
            other, same = known.setdefault(block, (worker, pair))
            if not same[1]:
                known[block] = worker, pair  # the first vote with optimizer state to compare
            if pair[0] != same[0] or (pair[1] and same[1] and pair[1] != same[1]):
                what = "parameters" if pair[0] != same[0] else "optimizer state"
                workers = f"workers {other} and {worker}"
                if block == REPLICATED_BLOCK:
                    return f"after step {step} {workers} differ in untrained tensors or in run.keep"
                return f"after step {step} {workers} have different {what} in block {block}"
    return ""
