"""What every job is entitled to, as if all could change at once.

From the leaves of the quota tree to its root, each node hands out what it owns: first minimums, then growth.
What a team does not use goes up to its cohort, and from there to the cluster, where others borrow it. So an
owner always comes before a borrower, and nothing stays idle that somebody may use.
"""

from elastane.scheduler.accounts import Accounts
from elastane.scheduler.books import Books
from elastane.scheduler.claimant import Claimant
from elastane.scheduler.claims import grant_minimums
from elastane.scheduler.growth import grant_growth
from elastane.scheduler.sizes import largest
from elastane.scheduler.survey import Ground


def entitle(ground: Ground) -> Books:
    """Fill in what each claimant is entitled to."""
    books = Books(Accounts(ground.tree, ground.growable), tuple(ground.pools))
    rules = ground.snapshot.rules
    below: dict[int, list[Claimant]] = {}
    for claimant in ground.claimants:
        if claimant.excused and claimant.limit:
            # It keeps its place until it is known what comes back.
            parts = tuple(claimant.held.items())
            books.grant(claimant, claimant.path[claimant.level], parts, growth=False)
        elif claimant.limit:
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
