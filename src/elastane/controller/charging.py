"""On which terms every job uses its devices, and at which price. Pure."""

from elastane.api.cluster import JobState, Snapshot
from elastane.api.wire import Use


def charged(snapshot: Snapshot) -> dict[str, tuple[Use, ...]]:
    """What each job uses now, by name; a job that uses nothing is not among them.

    A team's own quota pays for its oldest jobs first; what they use beyond it is borrowed. Devices of a spot
    pool are spot, whoever's quota they count against.
    """
    pools = {pool.name: pool for pool in snapshot.pools}
    owned = {(team.name, quota.pool): quota.nominal_quota for team in snapshot.teams for quota in team.quotas}
    found: dict[str, tuple[Use, ...]] = {}
    for state in sorted(snapshot.jobs, key=lambda one: one.number):
        uses: list[Use] = []
        for name, devices in sorted(_devices(state).items()):
            pool = pools.get(name)
            price = 0.0 if pool is None else pool.price
            if pool is not None and pool.spot:
                uses.append(Use(pool=name, terms="spot", devices=devices, price=price))
                continue
            account = state.spec.team, name
            own = min(devices, owned.get(account, 0))
            owned[account] = owned.get(account, 0) - own
            if own:
                uses.append(Use(pool=name, terms="owned", devices=own, price=price))
            if devices > own:
                uses.append(Use(pool=name, terms="borrowed", devices=devices - own, price=price))
        if uses:
            found[state.name] = tuple(uses)
    return found


def _devices(state: JobState) -> dict[str, int]:
    """By pool: of those that stay, and of those that are on their way out and still there."""
    found: dict[str, int] = {}
    places = [(one.pool, one.workers) for one in state.holds]
    places += [(one.pool, one.workers) for one in state.draining]
    for pool, workers in places:
        found[pool] = found.get(pool, 0) + workers * state.spec.resources_per_worker.devices
    return found
