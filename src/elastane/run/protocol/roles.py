"""The roles of workers in a generation: a pure function of their statuses, so that all members agree."""

from collections.abc import Mapping

import msgspec

from elastane.run.nouns.membership import Generation
from elastane.run.protocol.layout import FRESH, STORE, Layout
from elastane.run.protocol.messages import RoundOutcome, Status
from elastane.run.protocol.ownership import (
    Holders,
    choose_holders,
    choose_owners,
    choose_senders,
    spread_blocks,
    stripe_blocks,
)
from elastane.run.protocol.tree import expand_spans, find_spans


class Roles(msgspec.Struct, frozen=True, kw_only=True):
    """The division of work in one generation.

    Args:
        holders: per block, the workers that keep its optimizer state.
        owners: per block, the worker that sums it.
        first_owners: the owners in the first round of the generation: a worker that has the whole sum, if
            any.
        auditors: per block, the worker that digests its state.
        donors: per member, the units that it can send to joiners, which fetch a portion in each step.
        values: by receiver and sender, the units of which it fetches the values before any computing.
        states: by receiver and sender, the units of which it fetches the optimizer state before its first
            vote.
        lost: the units without a holder of their optimizer state, or without a worker that has their values.
    """

    holders: tuple[Holders, ...]
    owners: tuple[int, ...]
    first_owners: tuple[int, ...]
    auditors: tuple[int, ...]
    donors: dict[int, frozenset[int]]
    values: dict[int, dict[int, tuple[int, ...]]]
    states: dict[int, dict[int, tuple[int, ...]]]
    lost: tuple[int, ...]


def add_origin(layout: Layout, workers: tuple[int, ...], statuses: Mapping[int, Status]) -> dict[int, Status]:
    """Return the statuses; if no round was ever committed, the state of one member is the initial state.

    That member is the first one. If an earlier one died before it had sent all of its state, it is the first
    member with all values, so that gradients computed with them stay valid.
    """
    known = dict(statuses)
    if _has_outcome(statuses):
        return known
    held = frozenset[int]().union(*(expand_spans(status.held) for status in known.values()))
    if held == layout.everything:
        return known
    origin = next((worker for worker in workers if not known[worker].behind), workers[0])
    known[origin] = msgspec.structs.replace(
        known[origin], committed=_find_newest(statuses), held=find_spans(layout.everything), behind=()
    )
    return known


def _has_outcome(statuses: Mapping[int, Status]) -> bool:
    """Return whether a round was committed; void ones have no outcome."""
    return any(status.outcome is not None and status.outcome.round > 0 for status in statuses.values())


def _find_newest(statuses: Mapping[int, Status]) -> int:
    """Return the number of the last round, from 0: also without any member that has state yet."""
    return max(0, *(status.committed for status in statuses.values()))


def add_store(layout: Layout, origin: RoundOutcome, statuses: Mapping[int, Status]) -> dict[int, Status]:
    """Return the statuses and, until a round is committed, one more for the checkpoint of the start.

    Args:
        origin: the outcome of the checkpoint, as of round 0.
    """
    if _has_outcome(statuses):
        return dict(statuses)
    generation = next(iter(statuses.values())).generation
    stored = Status(
        generation=generation,
        worker=STORE,
        committed=_find_newest(statuses),
        outcome=origin,
        held=find_spans(layout.everything),
    )
    return {STORE: stored, **statuses}


def assign_roles(layout: Layout, generation: Generation, statuses: Mapping[int, Status]) -> Roles:
    """Return the roles of a generation.

    Args:
        statuses: the statuses of its members and of those that leave with it.
    """
    workers = generation.workers
    newest = max(status.committed for status in statuses.values())
    held = {worker: _find_held(status, newest) for worker, status in statuses.items()}
    lacking = {
        worker: _find_lacking(layout, status, newest, member=worker in workers)
        for worker, status in statuses.items()
    }
    values = _plan_value_transfers(layout, workers, statuses, lacking)
    present = {worker: layout.everything - lacking[worker] for worker in statuses}
    if layout.copies is None:
        holders: tuple[Holders, ...] = (workers,) * layout.blocks
        owners = stripe_blocks(layout.blocks, workers)
        whole = [worker for worker in workers if held[worker] == layout.everything]
        # A checkpoint can complete all members at once, and so can a start, which has hardly any state.
        # Otherwise, if no complete member is left, the first becomes complete from all that have a piece.
        at_once = not _has_outcome(statuses)
        new = tuple(w for w in workers if w not in whole) if at_once else () if whole else workers[:1]
        wanted = {w: sorted(layout.everything - {layout.replicated_unit} - held[w]) for w in new}
        auditors = spread_blocks(layout.blocks, whole or new)
        donors = {worker: layout.everything if worker in new else held[worker] for worker in workers}
    else:
        nodes = {member.worker: member.node for member in generation.members}
        holders = choose_holders(layout.blocks, workers, layout.copies, held, nodes)
        auditors = tuple(some[0] for some in holders)
        owners = choose_owners(holders, workers)
        wanted = {
            worker: [b for b, some in enumerate(holders) if worker in some and b not in held[worker]]
            for worker in workers
        }
        donors = {}
    rooted = {worker: find_rooted_blocks(statuses[worker], newest) for worker in workers}
    first_owners = tuple(
        next((worker for worker in workers if block in rooted[worker]), owners[block])
        for block in range(layout.blocks)
    )
    has_replicated = any(layout.replicated_unit in some for some in present.values())
    replicated = {layout.replicated_unit} if has_replicated else set[int]()
    # A worker that has the optimizer state of a block, but not its values, cannot continue alone.
    without_values = layout.everything - {layout.replicated_unit} - frozenset[int]().union(*present.values())
    lost = layout.everything - frozenset[int]().union(*held.values(), replicated) | without_values
    return Roles(
        holders=holders,
        owners=owners,
        first_owners=first_owners,
        auditors=auditors,
        donors=donors,
        values=values,
        states=choose_senders(wanted, held),
        lost=tuple(sorted(lost)),
    )


def _plan_value_transfers(
    layout: Layout,
    workers: tuple[int, ...],
    statuses: Mapping[int, Status],
    lacking: Mapping[int, frozenset[int]],
) -> dict[int, dict[int, tuple[int, ...]]]:
    """Plan the transfers of values between members.

    A newcomer needs the values after the code of the members' scripts. Every member has all of them when its
    script enters the next round, even if it lacks some now. A leaver may never enter that round.
    """
    present = {worker: layout.everything - lacking[worker] for worker in statuses}
    new = {w for w in workers if statuses[w].committed == FRESH or (statuses[w].released and lacking[w])}
    steady = {worker: layout.everything for worker in workers if worker not in new}
    return {
        **choose_senders({w: sorted(lacking[w]) for w in workers if w not in new}, present),
        **choose_senders({w: sorted(lacking[w]) for w in workers if w in new}, steady or present),
    }


def find_rooted_blocks(status: Status, newest: int) -> frozenset[int]:
    """Return the blocks of the round after ``newest`` of which a worker has the whole sums."""
    return expand_spans(status.rooted) if status.committed == newest else frozenset()


def _find_held(status: Status, newest: int) -> frozenset[int]:
    """Return the units with optimizer state after ``newest``; a worker that is one round late applies it."""
    return expand_spans(status.held if status.committed == newest else status.keeps)


def _find_lacking(layout: Layout, status: Status, newest: int, *, member: bool) -> frozenset[int]:
    """Return the units of which a worker lacks the values, after ``newest``."""
    if status.committed == newest:
        return expand_spans(status.behind)
    replicated = frozenset({layout.replicated_unit} if member and status.committed != FRESH else ())
    return layout.everything - expand_spans(status.keeps) - replicated
