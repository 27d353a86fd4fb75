"""Minimums, in order of right.

On the quota of one node of the tree, the jobs below it come

1. by priority, but whoever was started a moment ago before anybody who waits, because a start must be worth
   its cost;
2. the running before the waiting, because fairness does not stop a job; of the running those that can stay
   where they are or may move on what their team or cohort owns, before those that would borrow another
   place, and of each the one that was started first;
3. among the waiting those that have lost patience, oldest first, then by the dominant shares of their cohorts
   and teams, then oldest first.

A minimum that does not fit may take back what was given on quotas further down its own path: first what
others got beyond their minimums, then minimums of lower priorities.
"""

import heapq
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence

from elastane.api.plans import NoRoom
from elastane.scheduler.books import Books, Find, Hold, Parts, groups_of
from elastane.scheduler.claimant import Claimant, Grant

Fill = Callable[[int], None]
"""Hands out anew what a node owns."""


def grant_minimums(books: Books, node: int, waiting: Sequence[Claimant], grain: float, refill: Fill) -> None:
    """Give as many minimums as fit on the quota of ``node``.

    Args:
        books: who is entitled to what so far.
        node: whose quota.
        waiting: claimants below it that are entitled to nothing yet.
        grain: steps in which dominant shares are compared.
        refill: called for each node further down whose grants were taken back.
    """
    desk = _Desk(books, node, grain, refill)
    by_priority: dict[int, list[Claimant]] = {}
    for claimant in waiting:
        by_priority.setdefault(claimant.priority, []).append(claimant)
    protected = sorted((claimant for claimant in waiting if claimant.protected), key=_running_order)
    while by_priority:
        group = by_priority.pop(max(by_priority))
        running = sorted((claimant for claimant in group if claimant.running), key=_running_order)
        served = {claimant.number for claimant in running if desk.serve_in_place(claimant, by_priority)}
        # Whoever must leave a place borrows none where another one of its priority runs.
        for claimant in running:
            if claimant.number not in served:
                desk.serve(claimant, by_priority)
        desk.refill_vacated()
        starting = [claimant for claimant in group if not claimant.running]
        if starting:
            for claimant in protected:
                desk.serve(claimant, by_priority)
            desk.refill_vacated()
            desk.start(starting, by_priority)


def _running_order(claimant: Claimant) -> tuple[int, bool, float, int]:
    """By priority; those that have lost a part of their minimum last, the longest-running first."""
    lacks = claimant.lives < claimant.minimum
    return -claimant.priority, lacks, claimant.state.started_s or 0.0, claimant.number


class _Desk:
    """One round of claims on the quota of one node."""

    def __init__(self, books: Books, node: int, grain: float, refill: Fill) -> None:
        self.books, self.node, self.grain, self.refill = books, node, grain, refill
        self.holders: dict[int, Claimant] = {}
        self.held: list[tuple[Claimant, Parts]] = []
        self.held_for: dict[int, str] = {}
        self.awaited: set[int] = set()
        self.starting = False
        self.in_vain: dict[object, tuple[int, int]] = {}
        self.vacated: set[int] = set()

    def in_turn(self, waiting: list[Claimant]) -> Iterable[Claimant]:
        """Waiting claimants of one priority, the order following the shares as they change."""
        waiting.sort(key=lambda c: c.number)
        yield from (claimant for claimant in waiting if claimant.patient)
        teams: dict[int, deque[Claimant]] = {}
        for claimant in waiting:
            if not claimant.patient:
                teams.setdefault(claimant.path[0], deque()).append(claimant)
        heap = [(self.shares(queue[0]), queue[0].number, team) for team, queue in teams.items()]
        heapq.heapify(heap)
        while heap:
            shares, number, team = heapq.heappop(heap)
            queue = teams[team]
            now = self.shares(queue[0])
            if now > shares and heap and (now, number, team) > heap[0]:
                heapq.heappush(heap, (now, number, team))
                continue
            yield queue.popleft()
            if queue:
                heapq.heappush(heap, (self.shares(queue[0]), queue[0].number, team))

    def shares(self, claimant: Claimant) -> tuple[int, ...]:
        return shares(self.books, claimant, self.node, self.grain)

    def serve_in_place(self, claimant: Claimant, later: dict[int, list[Claimant]]) -> bool:
        """Whether a running claimant is served, without borrowing a place that it does not have yet."""
        level = claimant.path.index(self.node)
        if claimant.stays < claimant.minimum:
            return False
        if level < claimant.level or claimant.has_minimum:
            self.serve(claimant, later)
            return True
        if self.give(claimant, level, later, self.books.in_place):
            return True
        missing = claimant.minimum - claimant.entitled
        if any(self.books.parts(claimant, missing, below) is not None for below in range(level)):
            return self.give(claimant, level, later, self.books.parts)
        return False

    def serve(self, claimant: Claimant, later: dict[int, list[Claimant]]) -> None:
        """Give the claimant its minimum if that fits, at the cost of those who come ``later`` if it must."""
        if claimant.has_minimum:
            return
        level = claimant.path.index(self.node)
        keeps, lacks = claimant.running and level < claimant.level, claimant.stays < claimant.minimum
        if (lacks or not keeps) and self.give(claimant, level, later, self.books.parts):
            return
        if keeps:
            if claimant.waits is None:
                self.stay(claimant, level)
            if lacks and claimant.entitled and not claimant.has_minimum:
                # The rest may yet come from quotas further up; until then nobody starts on what it may need.
                self.hold(claimant)
            return
        self.refuse(claimant, level)
        if claimant.patient:
            self.hold(claimant)

    def give(self, claimant: Claimant, level: int, later: dict[int, list[Claimant]], find: Find) -> bool:
        """Its whole minimum, if it can have it."""
        parts, taken = self.places(claimant, level, find)
        if parts is not None and self.vacated:
            self.put_back(taken)
            self.refill_vacated()
            if claimant.has_minimum:
                return True
            parts, taken = self.places(claimant, level, find)
        if parts is None:
            return False
        self.books.grant(claimant, self.node, parts, growth=False)
        claimant.waits = None
        self.make_good(taken, later)
        return True

    def stay(self, claimant: Claimant, level: int) -> None:
        """A running job keeps its places; if these are enough, it looks for others only on the last quota.

        So it never moves from what it borrows to what its team owns, or back, for nothing.
        """
        parts = self.books.places(claimant, claimant.minimum - claimant.entitled, level)
        if parts and self.vacated:
            self.refill_vacated()
            parts = self.books.places(claimant, claimant.minimum - claimant.entitled, level)
        if parts:
            self.books.grant(claimant, self.node, parts, growth=False)

    def places(self, claimant: Claimant, level: int, find: Find) -> tuple[Parts | None, list[Grant]]:
        """Where its minimum fits, and what was taken back for that."""
        missing = claimant.minimum - claimant.entitled
        alike = (claimant.path[0], claimant.groups, claimant.devices)
        returned, least = self.in_vain.get(alike, (-1, 0))
        if not claimant.running and returned == self.books.returned and least <= missing:
            # One like it has just tried, and nothing has been taken back from anybody since.
            return None, []
        parts = find(claimant, missing, level)
        if parts is not None:
            return parts, []
        if level and not self.must_not_displace(claimant, level):
            parts, taken = self.displace(claimant, missing, level, find)
            if parts is not None:
                return parts, taken
        if not claimant.running:
            self.in_vain[alike] = self.books.returned, missing
        return None, []

    def displace(
        self, claimant: Claimant, missing: int, level: int, find: Find
    ) -> tuple[Parts | None, list[Grant]]:
        """Take back from the claimant's own team and cohorts until its minimum fits, or nothing."""
        books, taken = self.books, []
        if not books.may_fit(claimant, missing, level, find):
            return None, []
        books.forget(claimant.path[:level])
        for grant in self.takeable(claimant, level):
            if grant.taken_back:
                continue
            # A job does not keep growth without its minimum.
            own = [one for one in grant.claimant.grants if not grant.growth or one is grant]
            for one in own:
                books.take_back(one)
            taken += own
            parts = find(claimant, missing, level)
            if parts is not None:
                return parts, taken
        self.put_back(taken)
        return None, []

    def put_back(self, taken: Sequence[Grant]) -> None:
        """As if it had not been taken back."""
        for grant in reversed(taken):
            self.books.restore(grant)

    def takeable(self, claimant: Claimant, level: int) -> Iterator[Grant]:
        """Growth, the latest first; then minimums of lower priorities, the lowest and cheapest first.

        Looked for one by one: mostly the first few are enough.
        """
        pools = {pool for group in claimant.groups for pool in group.for_minimum}
        nodes = claimant.path[:level][::-1]

        def may_be_taken(grant: Grant) -> bool:
            return grant.claimant is not claimant and any(pool in pools for pool, _ in grant.parts)

        yield from (grant for grant in self.books.latest(nodes) if grant.growth and may_be_taken(grant))
        minimums = [
            grant
            for grant in self.books.latest(nodes)
            if not grant.growth
            and grant.claimant.priority < claimant.priority
            and not grant.claimant.protected
            and may_be_taken(grant)
        ]
        minimums.sort(key=lambda g: (g.claimant.priority, g.claimant.preemption_loses, -g.claimant.number))
        yield from minimums

    def make_good(self, taken: list[Grant], later: dict[int, list[Claimant]]) -> None:
        """What is left of quotas that were taken from goes to those who own them; the rest ask here again."""
        for node in {grant.node: None for grant in taken}:
            self.hand_out_again(node)
        for grant in taken:
            displaced = grant.claimant
            may_ask = self.node in displaced.path[: displaced.level + 1]
            if not grant.growth and not displaced.has_minimum and may_ask:
                later.setdefault(displaced.priority, []).append(displaced)

    def hold(self, claimant: Claimant) -> None:
        """Keep what there is of the claimant's minimum from who would start later; growth may use it."""
        last = self.node == claimant.path[claimant.level]
        if claimant.number in self.holders or (claimant.yields and not last):
            return
        self.holders[claimant.number] = claimant
        if claimant.path[0] != self.node:
            self.awaited.add(claimant.path[claimant.path.index(self.node) - 1])
        if self.starting:
            self.keep(claimant)

    def keep(self, claimant: Claimant) -> None:
        missing = claimant.minimum - claimant.entitled
        parts = self.books.as_many(claimant, missing, claimant.path.index(self.node))
        self.books.charge(claimant.path, parts, claimant.devices)
        self.held.append((claimant, parts))
        if claimant.patient:
            for pool, _ in parts:
                self.held_for.setdefault(pool, claimant.state.name)

    def start(self, waiting: list[Claimant], later: dict[int, list[Claimant]]) -> None:
        """Serve those of one priority that wait. What is held stops them, and never a running job."""
        self.starting = True
        self.in_vain.clear()
        for claimant in self.holders.values():
            self.keep(claimant)
        for claimant in self.in_turn(waiting):
            self.serve(claimant, later)
        if self.held:
            holders = [claimant for claimant, _ in self.held if not claimant.running]
            refused = [claimant for claimant in waiting if not claimant.has_minimum]
            self.books.holds.append(Hold(self.node, holders, refused))
        for claimant, parts in self.held:
            self.books.charge(claimant.path, parts, -claimant.devices)
        self.held, self.held_for, self.starting = [], {}, False

    def must_not_displace(self, claimant: Claimant, level: int) -> bool:
        """What it could take back is what somebody of its team or cohort, who holds its place, waits for."""
        return not claimant.running and claimant.path[level - 1] in self.awaited

    def refuse(self, claimant: Claimant, level: int) -> None:
        if level < claimant.level:
            return
        holder = self.holder(claimant)
        missing = claimant.minimum - claimant.entitled
        claimant.waits = no_room(self.books, claimant, missing, level, holder)
        # Part of a minimum is of no use to it, but may be to others of its team.
        for grant in list(claimant.grants):
            self.books.take_back(grant)
            self.vacated.add(grant.node)

    def refill_vacated(self) -> None:
        """Those who own what was given back get it, before anybody else could have it.

        Mostly nobody could, and many give back before it comes to that: all of it is handed out at once then.
        """
        while self.vacated:
            node = max(self.vacated, key=lambda one: (len(self.books.accounts.tree.paths[one]), -one))
            self.vacated.remove(node)
            self.hand_out_again(node)

    def hand_out_again(self, node: int) -> None:
        """What a node further down owns, as far as it has not been lent to others meanwhile."""
        with self.books.again(self.node):
            self.refill(node)

    def holder(self, claimant: Claimant) -> str:
        """The job that holds its place and waits for a pool the claimant could use."""
        pools = (pool for group in claimant.groups for pool in group.for_minimum)
        return next((self.held_for[pool] for pool in pools if pool in self.held_for), "")


def shares(
    books: Books, claimant: Claimant, node: int, grain: float, *, pool: int = 0, more: int = 0
) -> tuple[int, ...]:
    """Dominant shares of the claimant's cohorts and team below ``node``, topmost first, in grains.

    Args:
        books: who is entitled to what so far.
        claimant: whose.
        node: above them.
        grain: steps in which shares are compared.
        pool: in which it would get
        more: devices.
    """
    found = []
    for one in claimant.path:
        if one == node:
            break
        found.append(int(books.accounts.share(one, pool, more) / grain + 1e-9))
    return tuple(reversed(found))


def no_room(books: Books, claimant: Claimant, workers: int, level: int, held_for: str = "") -> NoRoom:
    """Why so many more workers do not fit, told of the pool that comes closest."""
    accounts = books.accounts
    found: list[NoRoom] = []
    for pool in dict.fromkeys(pool for group in groups_of(claimant) for pool in group.for_minimum):
        room, bound = books.limit(claimant, level, pool)
        there = min(accounts.free[pool], accounts.growable[pool])
        # A quota that has shrunk with a pool grows with it again when the reservation is over.
        by_pool = there <= room or claimant.reserved
        one = NoRoom(
            pool=books.pools[pool],
            need=workers * claimant.devices,
            room=max(0, int(min(room, there))),
            node=None if by_pool else accounts.tree.names[bound],
            held_for=held_for,
        )
        found.append(one)
    return max(found, key=lambda one: one.room)
