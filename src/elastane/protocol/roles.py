"""Who does what in a generation: a pure function of the statuses it began with, so all members agree."""

from collections.abc import Mapping

import msgspec

from elastane.api.membership import Generation
from elastane.protocol.layout import FRESH, STORE, Layout
from elastane.protocol.messages import RoundOutcome, Status
from elastane.protocol.ownership import Holders, choose_holders, choose_senders, spread_blocks
from elastane.protocol.tree import expand_spans, find_spans


class Roles(msgspec.Struct, frozen=True, kw_only=True):
    """The division of labour of one generation.

    Args:
        holders: per block, who keeps its optimizer state.
        owners: per block, who sums it.
        first_owners: likewise, in the generation's first round: whoever has the whole sum already gives it.
        auditors: per block, who digests its state.
        donors: units whose optimizer state each member has for those who fetch it bit by bit.
        values: receiver to sender to units whose values are fetched before anything is computed.
        states: likewise, units whose optimizer state is fetched before the first vote.
        lost: units whose optimizer state nobody holds any more, or whose values nobody has.
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
    """The statuses, with somebody whose state counts as the beginning if nothing was ever committed.

    That is the first member, or, when an earlier one died before it had passed all of its state on, the first
    that has all values: what was computed with them stays valid.
    """
    here = dict(statuses)
    if max(status.committed for status in here.values()) > 0:
        return here
    held = frozenset[int]().union(*(expand_spans(status.held) for status in here.values()))
    if held == layout.everything:
        return here
    origin = next((worker for worker in workers if not here[worker].behind), workers[0])
    everything = find_spans(layout.everything)
    here[origin] = msgspec.structs.replace(here[origin], committed=0, held=everything, behind=())
    return here


def add_store(layout: Layout, origin: RoundOutcome, statuses: Mapping[int, Status]) -> dict[int, Status]:
    """The statuses and, until a round has been committed, the checkpoint the run begins with as one more.

    Args:
        layout: of the run.
        origin: the outcome the checkpoint stands for, as of round 0.
        statuses: of the workers.
    """
    if max(status.committed for status in statuses.values()) > 0:
        return dict(statuses)
    generation = next(iter(statuses.values())).generation
    stored = Status(
        generation=generation,
        worker=STORE,
        committed=0,
        outcome=origin,
        held=find_spans(layout.everything),
    )
    return {STORE: stored, **statuses}


def assign_roles(layout: Layout, generation: Generation, statuses: Mapping[int, Status]) -> Roles:
    """The roles of a generation.

    Args:
        layout: of the run.
        generation: which.
        statuses: of its members and of those that leave with it.
    """
    workers = generation.workers
    newest = max(status.committed for status in statuses.values())
    held = {worker: _held(status, newest) for worker, status in statuses.items()}
    lacking = {
        worker: _lacking(layout, status, newest, member=worker in workers)
        for worker, status in statuses.items()
    }
    values = _values(layout, workers, statuses, lacking)
    present = {worker: layout.everything - lacking[worker] for worker in statuses}
    if layout.copies is None:
        holders: tuple[Holders, ...] = (workers,) * layout.blocks
        owners = spread_blocks(layout.blocks, workers)
        whole = [worker for worker in workers if held[worker] == layout.everything]
        # A checkpoint can make all members whole at once, and so can a beginning, when there is hardly any
        # state. Else, with no whole member left, the first becomes one, from all who have a piece.
        at_once = STORE in statuses or newest == 0
        new = tuple(w for w in workers if w not in whole) if at_once else () if whole else workers[:1]
        wanted = {w: sorted(layout.everything - {layout.rest} - held[w]) for w in new}
        auditors = spread_blocks(layout.blocks, whole or new)
        donors = {worker: layout.everything if worker in new else held[worker] for worker in workers}
    else:
        holders = choose_holders(layout.blocks, workers, layout.copies, held)
        owners = auditors = tuple(some[0] for some in holders)
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
    rest = {layout.rest} if any(layout.rest in some for some in present.values()) else set[int]()
    # Whoever has received only the optimizer state of a block, before its values, cannot go on alone.
    without_values = layout.everything - {layout.rest} - frozenset[int]().union(*present.values())
    lost = layout.everything - frozenset[int]().union(*held.values(), rest) | without_values
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


def _values(
    layout: Layout,
    workers: tuple[int, ...],
    statuses: Mapping[int, Status],
    lacking: Mapping[int, frozenset[int]],
) -> dict[int, dict[int, tuple[int, ...]]]:
    """Plan which member sends which values to which other one.

    A newcomer needs the values as the scripts of the members leave them. Every member will have all of them
    by the time its script enters the next round, whatever it lacks now; a leaver may never enter it.
    """
    present = {worker: layout.everything - lacking[worker] for worker in statuses}
    new = {w for w in workers if statuses[w].committed == FRESH or (statuses[w].released and lacking[w])}
    steady = {worker: layout.everything for worker in workers if worker not in new}
    return {
        **choose_senders({w: sorted(lacking[w]) for w in workers if w not in new}, present),
        **choose_senders({w: sorted(lacking[w]) for w in workers if w in new}, steady or present),
    }


def find_rooted_blocks(status: Status, newest: int) -> frozenset[int]:
    """Blocks of the round after ``newest`` that a worker has the whole sums of."""
    return expand_spans(status.rooted) if status.committed == newest else frozenset()


def _held(status: Status, newest: int) -> frozenset[int]:
    """Optimizer state a worker has as of ``newest``; who is a round late applies it first."""
    return expand_spans(status.held if status.committed == newest else status.keeps)


def _lacking(layout: Layout, status: Status, newest: int, *, member: bool) -> frozenset[int]:
    """Units whose values a worker lacks as of ``newest``."""
    if status.committed == newest:
        return expand_spans(status.behind)
    rest = frozenset({layout.rest} if member and status.committed != FRESH else ())
    return layout.everything - expand_spans(status.keeps) - rest
