"""From what jobs have to what they are entitled to, as far as devices are free now.

Who has more than it is entitled to gives it back at once. Who has less takes what is really free: minimums
first, then growth, both in the order in which they were granted. What leaves counts, against quotas and
pools, until it is seen gone. A device that somebody of a better right waits for is not given to anybody
else meanwhile.
"""

from dataclasses import dataclass, field

from elastane.scheduler.accounts import Accounts
from elastane.scheduler.claimant import Claimant
from elastane.scheduler.sizes import largest
from elastane.scheduler.survey import Ground


@dataclass(slots=True)
class Change:
    """What happens to one job now.

    Args:
        kept: workers that stay, by pool.
        new: workers that start, by pool.
        short: workers it is entitled to and cannot have yet, by pool.
        drain: workers that are asked to leave, those on nodes that go away included; by the name of the pool,
            because that may have been removed.
    """

    kept: dict[int, int] = field(default_factory=dict)
    new: dict[int, int] = field(default_factory=dict)
    short: dict[int, int] = field(default_factory=dict)
    drain: dict[str, int] = field(default_factory=dict)

    @property
    def workers(self) -> dict[int, int]:
        return {pool: self.at(pool) for pool in sorted({*self.kept, *self.new})}

    @property
    def size(self) -> int:
        return sum(self.kept.values()) + sum(self.new.values())

    def at(self, pool: int) -> int:
        return self.kept.get(pool, 0) + self.new.get(pool, 0)


def transition(ground: Ground) -> tuple[Change, ...]:
    """A change for each claimant, in their order."""
    accounts = occupied(ground)
    changes = {claimant.number: _kept(claimant) for claimant in ground.claimants}
    grants = sorted(
        (grant for claimant in ground.claimants for grant in claimant.grants), key=lambda g: g.rank
    )
    # A minimum stands where the last part of it was granted.
    minimums = dict.fromkeys(grant.claimant for grant in reversed(grants) if not grant.growth)
    for claimant in reversed(minimums):
        _claim(accounts, claimant, changes[claimant.number])
    # A job stands where its growth begins.
    for claimant in dict.fromkeys(grant.claimant for grant in grants if grant.growth):
        _grow(accounts, claimant, changes[claimant.number])
    for claimant in ground.claimants:
        change = changes[claimant.number]
        size = change.size
        if not size == claimant.size == claimant.stays:
            # What it is entitled to and cannot have at a legal size is kept for it all the same. A job whose
            # policy was changed, and that loses nothing, goes on until it can have a legal size.
            _cut(change, size - largest(claimant.state.spec.elastic_policy, size))
        for holding in claimant.state.holds:
            pool = ground.pools.get(holding.pool, -1)
            gone = holding.workers - change.kept.get(pool, 0)
            if gone:
                change.drain[holding.pool] = gone
    return tuple(changes.values())


def _kept(claimant: Claimant) -> Change:
    stay = {pool: min(held, claimant.given.get(pool, 0)) for pool, held in claimant.held.items()}
    return Change(kept={pool: workers for pool, workers in stay.items() if workers})


def _claim(accounts: Accounts, claimant: Claimant, change: Change) -> None:
    """All that is missing of a minimum, or nothing; what cannot be had is kept from those who come later."""
    wanted: dict[int, int] = {}
    for pool, workers in (part for grant in claimant.grants if not grant.growth for part in grant.parts):
        wanted[pool] = wanted.get(pool, 0) + workers
    missing = {
        pool: workers - change.at(pool) for pool, workers in wanted.items() if workers > change.at(pool)
    }
    fits = not claimant.busy and all(_free(accounts, claimant, pool) >= n for pool, n in missing.items())
    _take(accounts, claimant, missing if fits else _beyond_own_drain(claimant, missing))
    (change.new if fits else change.short).update(missing)


def _grow(accounts: Accounts, claimant: Claimant, change: Change) -> None:
    """The largest legal size that is free and earns back the resize; the rest is kept for the job."""
    missing = {
        pool: given - change.at(pool) - change.short.get(pool, 0) for pool, given in claimant.given.items()
    }
    missing = {pool: workers for pool, workers in missing.items() if workers > 0}
    now = change.size
    free = {pool: min(n, max(0, _free(accounts, claimant, pool))) for pool, n in missing.items()}
    _take(accounts, claimant, missing)
    policy, stays = claimant.state.spec.elastic_policy, claimant.stays
    size = largest(policy, now + sum(free.values()))
    pays = (
        not 0 < stays == claimant.size
        # A size that is not legal any more is left whatever that costs.
        or largest(policy, stays) != stays
        or size <= stays
        or claimant.curve.gain(stays, size) >= claimant.resize_log
    )
    more = size - now if now and pays and not claimant.busy else 0
    for pool, workers in missing.items():
        taken = min(free[pool], max(0, more))
        more -= taken
        if taken:
            change.new[pool] = change.new.get(pool, 0) + taken
        if workers > taken:
            change.short[pool] = change.short.get(pool, 0) + workers - taken


def _cut(change: Change, excess: int) -> None:
    """So many fewer: what has not begun is given up before what runs."""
    if not excess:
        return
    for workers in (change.new, change.kept):
        for pool in reversed(tuple(workers)):
            gone = min(excess, workers[pool])
            excess -= gone
            workers[pool] -= gone
            if not workers[pool]:
                del workers[pool]


def _free(accounts: Accounts, claimant: Claimant, pool: int) -> int:
    """Workers that fit now, by the pool and by every quota above."""
    room = accounts.room(claimant.path, len(claimant.path) - 1, pool)
    return int(min(accounts.free[pool], room) // claimant.devices)


def _beyond_own_drain(claimant: Claimant, missing: dict[int, int]) -> dict[int, int]:
    """What must be kept for the job besides the devices that its own workers are about to leave."""
    return {pool: max(0, count - claimant.draining.get(pool, 0)) for pool, count in missing.items()}


def _take(accounts: Accounts, claimant: Claimant, workers: dict[int, int]) -> None:
    for pool, count in workers.items():
        accounts.charge(claimant.path, pool, count * claimant.devices)


def occupied(ground: Ground) -> Accounts:
    """Accounts with everything that is there now, on its way out or not."""
    accounts = Accounts(ground.tree, ground.growable)
    accounts.free = list(ground.growable)
    for claimant in ground.claimants:
        state, devices = claimant.state, claimant.devices
        present = [(one.pool, one.workers, one.leaving) for one in state.holds]
        present += [(one.pool, one.workers, one.leaving) for one in state.draining]
        for name, workers, leaving in present:
            if name in ground.pools:
                # The pool does not count nodes that go away; quotas do as long as they are used.
                accounts.charge(claimant.path, ground.pools[name], (workers - leaving) * devices)
                accounts.owe(claimant.path, ground.pools[name], leaving * devices)
    return accounts
