"""Why a job that waits is not given what jobs of a lower priority have: they are protected, or own it."""

from collections.abc import Iterator
from typing import NamedTuple

from elastane.api.plans import NoRoom, OwnedByOthers, Protected, Why
from elastane.scheduler.books import Books
from elastane.scheduler.claimant import Claimant, Grant
from elastane.scheduler.survey import Ground


class _Place(NamedTuple):
    """What a grant gives in one pool."""

    grant: Grant
    devices: int


class Obstacles:
    """Rights of a plan that keep a higher priority from taking something.

    Args:
        ground: the snapshot.
        books: who is entitled to what.
    """

    def __init__(self, ground: Ground, books: Books) -> None:
        self.ground, self.names = ground, books.accounts.tree.names
        self.protected: dict[int, list[_Place]] = {}
        self.owned: dict[int, dict[tuple[int, int], int]] = {}
        self.promised: dict[int, int] = {}
        self.found: dict[object, int] = {}
        for claimant in ground.claimants:
            for grant in claimant.grants if claimant.running else ():
                self._note(grant)
        for places in self.protected.values():
            places.sort(key=lambda one: (one.grant.claimant.priority, one.grant.claimant.number))

    def _note(self, grant: Grant) -> None:
        claimant = grant.claimant
        for pool, workers in grant.parts:
            devices = workers * claimant.devices
            by = self.owned.setdefault(pool, {})
            key = (grant.node, claimant.priority)
            by[key] = by.get(key, 0) + devices
            if claimant.protected and not grant.growth:
                self.protected.setdefault(pool, []).append(_Place(grant, devices))

    def of(self, claimant: Claimant, why: NoRoom) -> Iterator[Why]:
        """Reasons beside ``why``; none if the priorities of others have no part in it."""
        pool, missing = self.ground.pools[why.pool], why.need - why.room
        if why.held_for or claimant.running:
            return
        found = tuple(self._protected(claimant, why, pool, missing))
        if found:
            yield from found
            return
        devices = self._owned(claimant, pool)
        if devices >= missing:
            yield OwnedByOthers(pool=why.pool, devices=devices)

    def _protected(self, claimant: Claimant, why: NoRoom, pool: int, missing: int) -> Iterator[Protected]:
        """All jobs whose protection must end before enough may be taken; none if that would not be enough.

        What one that waits may take is not told to the next, which comes after it.
        """
        reach = set(claimant.path[: claimant.level + 1])
        bound = next((node for node in claimant.path if self.names[node] == why.node), None)
        chosen: list[tuple[_Place, int]] = []
        for place in self.protected.get(pool, ()):
            other = place.grant.claimant
            left = place.devices - self.promised.get(id(place.grant), 0)
            within = place.grant.node in reach and (bound is None or bound in other.path)
            if left > 0 and within and other.priority < claimant.priority:
                chosen.append((place, min(left, missing)))
                missing -= left
                if missing <= 0:
                    break
        if missing > 0:
            return
        for place, devices in chosen:
            state = place.grant.claimant.state
            self.promised[id(place.grant)] = self.promised.get(id(place.grant), 0) + devices
            yield Protected(
                job=state.name,
                by=claimant.state.name,
                pool=why.pool,
                devices=devices,
                until_s=(state.started_s or 0.0) + self.ground.snapshot.rules.min_run_time_s,
            )

    def _owned(self, claimant: Claimant, pool: int) -> int:
        """Devices that jobs of a lower priority have on quotas of teams and cohorts above others only."""
        key = (claimant.path, claimant.priority, pool)
        if key not in self.found:
            self.found[key] = sum(
                devices
                for (node, priority), devices in self.owned.get(pool, {}).items()
                if priority < claimant.priority and node not in claimant.path
            )
        return self.found[key]
