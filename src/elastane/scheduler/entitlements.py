"""What every job is entitled to, as if all could change at once.

From the leaves of the quota tree to its root, each node hands out what it owns: first minimums, then growth.
What a team does not use goes up to its cohort, and from there to the cluster, where others borrow it. So an
owner always comes before a borrower, and nothing stays idle that somebody may use.

What has failed and may come back counts as if it were there, but only for a job that has to give up nothing:
nobody waits for what is really there because others wait for a repair.
"""

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
    excused = _awaiting_repair(snapshot)
    while True:
        ground = survey(snapshot, excused)
        books = _entitle(ground)
        losers = {one.number for one in ground.claimants if one.placed < _wished(one)} & excused
        if not losers:
            return ground, books
        # One that must give up something may cost another one what it has.
        excused -= losers


def _wished(claimant: Claimant) -> int:
    """Workers that the job would keep if nobody else had a better right to them."""
    return largest(claimant.state.spec.elastic_policy, min(claimant.stays, claimant.limit))


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
