"""Why a job loses what it has: who gets it instead, or what became of it."""

import math
from dataclasses import dataclass

from elastane.api.plans import (
    Because,
    CapacityGone,
    GivesWay,
    NoRoom,
    NotWorth,
    QuotaReached,
    Reserved,
    ResizeTooDear,
    SizeNotLegal,
    Why,
)
from elastane.scheduler.accounts import CLUSTER, Accounts
from elastane.scheduler.books import Books
from elastane.scheduler.claimant import Claimant, Grant
from elastane.scheduler.growth import LAX
from elastane.scheduler.sizes import largest
from elastane.scheduler.survey import Ground, restriction_of


@dataclass(slots=True)
class Gain:
    """Devices in one pool that a job is newly entitled to.

    Args:
        grant: by which.
        devices: not yet named as the cause of a loss.
        whole: all of them.
    """

    grant: Grant
    devices: int
    whole: int


class Causes:
    """The reason for each loss, as far as it lies with others: their gains, in order of right.

    Args:
        ground: the snapshot.
        books: who is entitled to what.
    """

    def __init__(self, ground: Ground, books: Books) -> None:
        self.ground, self.books = ground, books
        self.before = Accounts(ground.tree, ground.growable)
        self.gains: dict[int, list[Gain]] = {}
        held = dict.fromkeys(ground.pools.values(), 0)
        self.fewer = {pool.name: min(0, pool.leaving - pool.devices) for pool in ground.snapshot.pools}
        for claimant in ground.claimants:
            for one in claimant.state.holds:
                if one.pool in ground.pools:
                    self.fewer[one.pool] += (one.workers - one.leaving) * claimant.devices
            for pool, workers in claimant.held.items():
                held[pool] += workers * claimant.devices
                self.before.charge(claimant.path, pool, workers * claimant.devices)
            self._note_gains(claimant)
        for gains in self.gains.values():
            gains.sort(key=lambda gain: gain.grant.rank)
        self.gone = [max(0, held[pool] - ground.healthy[pool]) for pool in ground.pools.values()]
        self.over = [max(0, held[pool] - ground.tree.capacity[pool]) for pool in ground.pools.values()]

    def _note_gains(self, claimant: Claimant) -> None:
        left = dict(claimant.held)
        for grant in claimant.grants:
            for pool, workers in grant.parts:
                stay = min(workers, left.get(pool, 0))
                left[pool] = left.get(pool, 0) - stay
                if workers > stay:
                    devices = (workers - stay) * claimant.devices
                    gain = Gain(grant, devices, devices)
                    self.gains.setdefault(pool, []).append(gain)

    def of(self, claimant: Claimant) -> tuple[Why, ...]:
        """Why the claimant loses workers that could stay where they are; empty if it loses none."""
        lost = {pool: held - claimant.given.get(pool, 0) for pool, held in claimant.held.items()}
        lost = {pool: workers for pool, workers in lost.items() if workers > 0}
        if not lost:
            return ()
        own = self._own(claimant)
        if own is not None:
            return (own,)
        # Elsewhere they cannot stay whoever else is there.
        suitable = {pool for group in claimant.groups for pool in group.for_minimum}
        others = [
            why
            for pool, workers in lost.items()
            if pool in suitable
            for why in self._others(claimant, pool, workers * claimant.devices)
        ]
        return tuple(dict.fromkeys(others))

    def _own(self, claimant: Claimant) -> Why | None:
        """A reason of the job's own."""
        if not claimant.limit:
            return claimant.limited_by
        if not claimant.entitled or claimant.entitled >= claimant.stays:
            return None
        if claimant.entitled == largest(claimant.state.spec.elastic_policy, claimant.stays):
            return SizeNotLegal(workers=claimant.stays)
        stop, rules = claimant.stop, self.ground.snapshot.rules
        # What it has it keeps although it would not get it anew.
        kept = isinstance(stop, NoRoom | ResizeTooDear)
        kept = kept or (isinstance(stop, NotWorth) and stop.efficiency >= LAX * rules.worth)
        return None if kept else stop

    def _others(self, claimant: Claimant, pool: int, devices: int) -> list[Why]:
        accounts, name = self.books.accounts, tuple(self.ground.pools)[pool]
        names, most = accounts.tree.names, accounts.tree.most
        for one in claimant.path[: claimant.level]:
            if most(one, pool) < claimant.devices:
                # Whoever else uses it: not one worker may stay.
                return [QuotaReached(node=names[one], pool=name, limit=int(most(one, pool)))]
        room, node = accounts.limit(claimant.path, claimant.level, pool)
        by_node = room < accounts.free[pool] and node != CLUSTER
        fewer = self._fewer(pool, name)
        found = [] if by_node else list(fewer)
        by_others = devices - max(self.gone[pool], self.over[pool]) if found else devices
        if by_others > 0:
            found += self._gainers(claimant, pool, name, by_others, node if by_node else CLUSTER)
        if found:
            return found
        if node == CLUSTER and room < accounts.free[pool]:
            return [QuotaReached(node="", pool=name, limit=accounts.tree.quota[CLUSTER][pool])]
        if fewer:
            # Others of its quota keep their places where there is no longer room for all.
            return fewer
        if by_node and most(node, pool) < math.inf:
            return [QuotaReached(node=names[node], pool=name, limit=int(most(node, pool)))]
        if by_node and room < devices:
            return [NoRoom(pool=name, need=devices, room=max(0, int(room)), node=names[node])]
        return []

    def _fewer(self, pool: int, name: str) -> list[Why]:
        """Why there are fewer devices than are held."""
        found: list[Why] = []
        if self.gone[pool]:
            nodes = tuple(one for one in self.ground.snapshot.departures if one.pool == name)
            found.append(
                CapacityGone(
                    pool=name,
                    devices=self.fewer[name],
                    nodes=nodes,
                    restriction=restriction_of(self.ground.snapshot, name),
                )
            )
        if self.over[pool] > self.gone[pool]:
            found += [
                Reserved(reservation=one.name, pool=name, devices=one.devices, at_s=at_s)
                for one, at_s in self.ground.reserved[pool]
            ]
        return found

    def _gainers(self, loser: Claimant, pool: int, name: str, devices: int, node: int) -> list[Why]:
        """Those below ``node`` who get the devices, first whoever is not yet named for another loss."""
        gains = self.gains.get(pool, ())
        found: list[Why] = []
        for gain in gains:
            if gain.devices <= 0:
                continue
            because = self._right(gain, loser, node)
            if because is not None:
                named = min(gain.devices, devices)
                gain.devices -= named
                devices -= named
                winner = gain.grant.claimant.state.name
                found.append(GivesWay(job=winner, pool=name, devices=named, because=because))
                if devices <= 0:
                    break
        if found:
            return found
        for gain in gains:
            because = self._right(gain, loser, node)
            if because is not None:
                winner = gain.grant.claimant.state.name
                return [GivesWay(job=winner, pool=name, devices=min(gain.whole, devices), because=because)]
        return []

    def _right(self, gain: Gain, loser: Claimant, node: int) -> Because | None:
        """What makes a gain below ``node`` a better right than the loser's; None if nothing does."""
        if gain.grant.claimant is loser or node not in gain.grant.claimant.path:
            return None
        return self._because(gain.grant, loser)

    def _because(self, grant: Grant, loser: Claimant) -> Because | None:
        """What makes the grant a better right than the loser's; None if nothing does."""
        winner = grant.claimant
        if grant.node not in loser.path:
            return "owner"
        if not grant.growth:
            spared = loser.entitled >= loser.minimum
            return "minimum" if spared or winner.priority > loser.priority else None
        if not loser.entitled or winner.priority < loser.priority:
            return None
        if winner.priority > loser.priority:
            return "priority"
        if winner.needed > winner.size:
            return "deadline"
        for mine, others in zip(reversed(loser.path), reversed(winner.path), strict=False):
            if mine != others:
                fair = self.books.accounts.share(others) <= self.before.share(mine)
                return "fairness" if fair else "goodput"
        return "goodput"
