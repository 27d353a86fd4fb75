"""What every job is entitled to, as if all could change at once.

From the leaves of the quota tree to its root, each node hands out what it owns: first minimums, then growth.
What a team does not use goes up to its cohort, and from there to the cluster, where others borrow it. So an
owner always comes before a borrower, and nothing stays idle that somebody may use.

What has failed and may come back counts as if it were there, but only for a job that has to give up nothing:
nobody waits for what is really there because others wait for a repair. And what a job that has lost patience
keeps from its team or cohort is theirs again where borrowers would have it instead.
"""

from collections.abc import Container, Sequence

from elastane.api.cluster import Snapshot
from elastane.scheduler.accounts import Accounts
from elastane.scheduler.books import Books
from elastane.scheduler.claimant import Claimant
from elastane.scheduler.claims import grant_minimums
from elastane.scheduler.growth import grant_growth
from elastane.scheduler.limits import repaired_by_s
from elastane.scheduler.sizes import largest
from elastane.scheduler.survey import Ground, lacking, survey


def settle(snapshot: Snapshot) -> tuple[Ground, Books]:
    """What each claimant is entitled to, filled in, and the books of it."""
    excused, yielding = _awaiting_repair(snapshot), set[int]()
    while True:
        ground = survey(snapshot, excused)
        for claimant in ground.claimants:
            claimant.yields = claimant.number in yielding
        books = _entitle(ground)
        losers = {one.number for one in ground.claimants if one.placed < _wished(one)} & excused
        in_vain = _holding_in_vain(books) - yielding
        if not losers and not in_vain:
            return ground, books
        # One that must give up something may cost another one what it has.
        excused -= losers
        yielding |= in_vain


def _wished(claimant: Claimant) -> int:
    """Workers that the job would keep if nobody else had a better right to them."""
    return largest(claimant.state.spec.elastic_policy, min(claimant.stays, claimant.limit))


def _holding_in_vain(books: Books) -> set[int]:
    """Numbers of jobs that keep from others of their team or cohort what then goes to those who borrow it.

    They need others' quota, too, and have no right to it; the others need no more than the node owns.
    """
    accounts, found = books.accounts, set[int]()
    beside_growth = list(accounts.free)
    for node in accounts.tree.upwards if books.holds else ():
        for grant in books.latest((node,)):
            for pool, workers in grant.parts if grant.growth else ():
                beside_growth[pool] += workers * grant.claimant.devices
    for node, holders, refused in books.holds:
        quota, used = accounts.tree.quota[node], accounts.used[node]
        lent = {pool for pool, idle in enumerate(beside_growth) if quota[pool] - used[pool] > max(0, idle)}
        if lent and any(not one.has_minimum and _fits_alone(one, quota, lent) for one in refused):
            above = (one for one in holders if not one.has_minimum and node != one.path[one.level])
            found |= {one.number for one in above if not _fits_alone(one, quota, lent)}
    return found


def _fits_alone(claimant: Claimant, quota: Sequence[int], lent: Container[int]) -> bool:
    """Its minimum needs no more than this quota, of which something is lent that it could use."""
    return any(
        any(pool in lent for pool in group.for_minimum)
        and sum(max(0, quota[pool]) // claimant.devices for pool in group.for_minimum) >= claimant.minimum
        for group in claimant.groups
    )


def _awaiting_repair(snapshot: Snapshot) -> set[int]:
    """Numbers of jobs on devices that are gone and may yet come back."""
    late = [state for state in snapshot.jobs if repaired_by_s(state) > snapshot.now_s]
    away = lacking(snapshot) if late else {}
    return {state.number for state in late if any(one.failed and one.pool in away for one in state.holds)}


def _entitle(ground: Ground) -> Books:
    books = Books(Accounts(ground.tree, ground.growable), tuple(ground.pools))
    rules = ground.snapshot.rules
    below: dict[int, list[Claimant]] = {}
    for claimant in ground.claimants:
        if claimant.limit:
            for node in claimant.path[: claimant.level + 1]:
                below.setdefault(node, []).append(claimant)

    def fill(node: int) -> None:
        members = below.get(node, ())
        waiting = [claimant for claimant in members if not claimant.has_minimum]
        grant_minimums(books, node, waiting, rules.fairness_grain, fill)
        grant_growth(books, node, (claimant for claimant in members if claimant.has_minimum), rules)

    for node in ground.tree.upwards:
        fill(node)
    for claimant in ground.claimants:
        _round_down(books, claimant)
    return books


def _round_down(books: Books, claimant: Claimant) -> None:
    """Growth on top of workers that were then not granted may have left a size that is not legal."""
    policy = claimant.state.spec.elastic_policy
    while claimant.entitled != largest(policy, claimant.entitled) and claimant.grants[-1].growth:
        books.take_back(claimant.grants[-1])
