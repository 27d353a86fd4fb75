"""Spot checks: another worker computes a virtual rank once more, and both must find the same bits.

They find faults of hardware that change results silently, and scripts with gradients that depend on what
a worker has computed before. A step commits only after its check. A result is right if two workers have found
it. If two workers differ, a third one computes the virtual rank too; if all differ, each computes it again.
If still no two agree, for example because each worker of a script has its own cache, that cannot be decided.

Faults of the first kind are common at scale: Dixit et al., Silent Data Corruptions at Scale,
arXiv:2102.11245, 2021.
"""

from collections import Counter
from collections.abc import Collection, Mapping

import msgspec

from elastane.run.nouns.spec import SpotChecks
from elastane.run.protocol.messages import Leaf, SpotCheck, Vote
from elastane.run.protocol.sampling import mix

FIRST_STEPS = 3
"""At most this number of steps after workers have joined are checked, and fewer if a worker has fewer virtual
ranks, so that all these checks take no longer than one step."""

MAJORITY_OF = 3
"""Fewer workers cannot outvote one of them."""

RARELY = 250
"""A worker computes one microbatch for a check after this number of its own: at most 0.5 % of the time."""


class Finding(msgspec.Struct, frozen=True):
    """Different results of one virtual rank.

    Args:
        workers: the workers that have computed it.
        wrong: the worker among them that is wrong; None: that cannot be decided.
        parameter: the number of the first parameter with different gradients, buffers after all parameters;
            None: the gradients are equal, but not the loss or a value that was logged.
    """

    virtual_rank: int
    workers: tuple[int, ...]
    wrong: int | None
    parameter: int | None


class Judgement(msgspec.Struct, frozen=True):
    """What the recomputed virtual ranks of a round show.

    Args:
        agreed: the number of results of other workers with the same bits.
        virtual_rank: one with results that differ, so that ``needed`` must compute it before it is decided.
        needed: the workers that must compute it once more; empty: nothing is open.
        finding: the results differ for good, so the round cannot commit.
        void: the sums may have a wrong result of a worker that has died, so its members repeat the round.
    """

    agreed: int = 0
    virtual_rank: int = 0
    needed: frozenset[int] = frozenset()
    finding: Finding | None = None
    void: bool = False


def choose_spot_check(
    rule: SpotChecks,
    step: int,
    shares: Mapping[int, frozenset[int]],
    newcomers: Collection[int],
    steps_before: int,
    computable: Mapping[int, frozenset[int]] | None = None,
) -> SpotCheck | None:
    """Return the check of a training step, the same on every member; None: the step has none.

    Args:
        step: the number of the step, from 1.
        shares: the virtual ranks of each member.
        newcomers: the members that joined with this generation. They check others in their first steps.
        steps_before: the number of steps that the generation has made before this one.
        computable: the virtual ranks that each member may compute; None: all.
    """
    total = sum(map(len, shares.values()))
    usual = max(total // len(shares), 1)
    is_first = bool(newcomers) and steps_before < min(FIRST_STEPS, usual)
    if rule == "off" or not (rule == "every" or is_first or step % -(-RARELY // usual) == 0):
        return None
    turn = mix(step)
    able = sorted(newcomers if is_first else shares)
    for worker in (able[(turn + i) % len(able)] for i in range(len(able))):
        others = sorted(
            rank
            for other, ranks in shares.items()
            if other != worker
            for rank in ranks
            if computable is None or rank in computable[worker]
        )
        if others:
            return SpotCheck(others[(turn >> 16) % len(others)], worker)
    return None


def move_spot_check(
    check: SpotCheck | None,
    shares: Mapping[int, frozenset[int]],
    computable: Mapping[int, frozenset[int]] | None = None,
) -> SpotCheck | None:
    """Return the check of a round that goes on after a death: another member makes it, if that is needed."""
    if check is None or check.virtual_rank not in shares.get(check.worker, {check.virtual_rank}):
        return check
    able = [
        worker
        for worker, ranks in sorted(shares.items())
        if check.virtual_rank not in ranks
        and (computable is None or check.virtual_rank in computable[worker])
    ]
    return SpotCheck(check.virtual_rank, able[check.virtual_rank % len(able)]) if able else None


def judge_results(
    leaves: Mapping[int, Leaf],
    votes: Mapping[int, Vote],
    computable: Mapping[int, frozenset[int]] | None = None,
) -> Judgement:
    """Compare all results of the virtual ranks that were recomputed, when all members have voted.

    Args:
        leaves: the results of the round, one per virtual rank.
        votes: one per member.
        computable: the virtual ranks that each member may compute; None: all.
    """
    if any(vote.unchecked for vote in votes.values()):
        return Judgement(void=True)
    agreed = 0
    for rank, results in sorted(_collect_results(leaves, votes).items()):
        if _differ(results):
            able = [worker for worker in votes if computable is None or rank in computable[worker]]
            return _decide(rank, results, votes, able)
        agreed += len(results) - 1
    return Judgement(agreed=agreed)


def is_disputed(leaves: Mapping[int, Leaf], votes: Mapping[int, Vote]) -> bool:
    """Tell whether results differ among those that have arrived so far."""
    return any(map(_differ, _collect_results(leaves, votes).values()))


def _collect_results(
    leaves: Mapping[int, Leaf], votes: Mapping[int, Vote]
) -> dict[int, dict[int, list[Leaf]]]:
    """Return the comparable results by virtual rank, then by worker, each in the order of computation."""
    found: dict[int, dict[int, list[Leaf]]] = {}
    for _, vote in sorted(votes.items()):
        for again in vote.recomputed:
            first = leaves.get(again.virtual_rank)
            # A worker that took over the virtual rank of a dead one may have computed it without digests, and
            # a checker may have no cheap way to load the samples.
            if first is not None and first.fingerprints and first.samples and again.fingerprints:
                results = found.setdefault(again.virtual_rank, {first.worker: [first]})
                results.setdefault(again.worker, []).append(again)
    return {rank: results for rank, results in found.items() if len(results) > 1}


def _differ(results: Mapping[int, list[Leaf]]) -> bool:
    return len({_encode(leaf) for some in results.values() for leaf in some}) > 1


def _encode(leaf: Leaf) -> bytes:
    """Return the bytes of a result; those of equal results are equal, also if a value is not a number."""
    # Numbers that have crossed a connection are floats.
    weight, sums = float(leaf.weight), {name: float(term) for name, term in sorted(leaf.sums.items())}
    return msgspec.msgpack.encode(
        msgspec.structs.replace(leaf, worker=0, cursor=None, weight=weight, sums=sums)
    )


def _decide(
    rank: int, results: Mapping[int, list[Leaf]], members: Collection[int], able: Collection[int]
) -> Judgement:
    if not results.keys() <= set(members):
        return Judgement(void=True)
    others = sorted(set(able) - results.keys())
    once = frozenset(worker for worker, some in results.items() if len(some) == 1)
    if len({_encode(some[0]) for some in results.values()}) == len(results):
        if others and len(results) < MAJORITY_OF:
            return Judgement(virtual_rank=rank, needed=frozenset({others[rank % len(others)]}))
        if once:
            return Judgement(virtual_rank=rank, needed=once)
    values = {worker: set(map(_encode, some)) for worker, some in results.items()}
    value, confirmed_by = Counter(v for some in values.values() for v in sorted(some)).most_common(1)[0]
    wrong = [worker for worker, some in values.items() if some != {value}] if confirmed_by > 1 else []
    # If several are wrong, each further one is found when the round is repeated.
    culprit = max(wrong, default=None)
    return Judgement(finding=Finding(rank, tuple(sorted(results)), culprit, _find_parameter(results)))


def _find_parameter(results: Mapping[int, list[Leaf]]) -> int | None:
    """Return the number of the first gradient, or change of a buffer, that differs; None: none does."""
    rows = zip(*(leaf.fingerprints for some in results.values() for leaf in some), strict=False)
    return next((number for number, row in enumerate(rows) if len(set(row)) > 1), None)
