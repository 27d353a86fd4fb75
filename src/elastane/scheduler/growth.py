"""What is left after the minimums goes to growth, one legal size at a time, in order of right.

On the quota of one node the next step is that of

1. the higher priority;
2. a job that would miss its deadline at the size it has;
3. what a job that was resized a moment ago already holds;
4. the cohort, then the team, with the smaller dominant share: without what the job has already, with what it
   would get, so that large steps do not take turns;
5. the job to which a device is worth most: by how much it speeds the job up, in proportion. What a job
   already holds is worth more to it by what a resize would cost, so that a swap must earn that back within
   the horizon.

A job stops growing when the next worker is not worth its devices, or when no size in reach earns back a
resize.
"""

import heapq
from collections.abc import Iterable
from typing import NamedTuple, TypeAlias

from elastane.api.plans import NotWorth, ResizeTooDear
from elastane.api.rules import Rules
from elastane.scheduler.books import Books
from elastane.scheduler.claimant import Claimant
from elastane.scheduler.claims import no_room, shares
from elastane.scheduler.sizes import following

STICKY = 1.1
"""What is held is worth a tenth more, so that noise in measured speeds moves nobody."""

LAX = 0.5
"""Of `Rules.worth`: what is held is given up only well below what would be asked for it anew."""

Key: TypeAlias = tuple[int, bool, bool, float, int]
"""Priority (negative), in time, not settled, worth per device (negative), number of the job."""


class Step(NamedTuple):
    """From one size to the next.

    Args:
        key: place in the order, shares aside.
        workers: how many more.
        held: the job has them already; else it has yet to get them.
    """

    key: Key
    workers: int
    held: bool


def grant_growth(books: Books, node: int, claimants: Iterable[Claimant], rules: Rules) -> None:
    """Let claimants that have their minimum grow on the quota of ``node``.

    Args:
        books: who is entitled to what so far.
        node: whose quota.
        claimants: below it.
        rules: for what is worth its devices.
    """
    queues = _queues(books, node, claimants, rules)
    turns = [(_turn(books, node, queue, rules), team) for team, queue in queues.items()]
    heapq.heapify(turns)
    while turns:
        turn, team = turns[0]
        queue = queues[team]
        step, claimant = queue[0]
        if len(turns) > 1 and claimant.path.index(node) > 1:
            now = _turn(books, node, queue, rules)
            if now > turn:
                # The share of its cohort has grown meanwhile.
                heapq.heapreplace(turns, (now, team))
                if turns[0][1] != team:
                    continue
        following_step = _take(books, node, claimant, step, rules)
        if following_step is None:
            heapq.heappop(queue)
        else:
            heapq.heapreplace(queue, (following_step, claimant))
        if not queue:
            heapq.heappop(turns)
        elif len(turns) > 1:
            heapq.heapreplace(turns, (_turn(books, node, queue, rules), team))


def _queues(
    books: Books, node: int, claimants: Iterable[Claimant], rules: Rules
) -> dict[int, list[tuple[Step, Claimant]]]:
    """Of each team a heap of next steps. Numbers are unique, so claimants themselves are never compared."""
    queues: dict[int, list[tuple[Step, Claimant]]] = {}
    idle: dict[int, bool] = {}
    for claimant in claimants:
        path = claimant.path
        if path[0] not in idle:
            idle[path[0]] = books.accounts.idle(path, path.index(node))
        if not idle[path[0]] and node != path[claimant.level]:
            # Nothing is left for its team; why it does not grow is told of the last quota it may use.
            continue
        step = next_step(claimant, node, rules)
        if step is not None:
            queues.setdefault(claimant.path[0], []).append((step, claimant))
    for queue in queues.values():
        heapq.heapify(queue)
    return queues


def _take(books: Books, node: int, claimant: Claimant, step: Step, rules: Rules) -> Step | None:
    """Grant the step if it fits, and say which is the next."""
    level = claimant.path.index(node)
    parts = books.growth(claimant, step.workers, level, held=step.held)
    if parts is not None:
        books.grant(claimant, node, parts, growth=True)
        return next_step(claimant, node, rules, new_only=not step.held)
    if step.held:
        # It may have a right to these on a quota further up, and on this one to others on top of them.
        return next_step(claimant, node, rules, new_only=True)
    if level == claimant.level:
        claimant.stop = no_room(books, claimant, step.workers, level)
    return None


def _turn(books: Books, node: int, queue: list[tuple[Step, Claimant]], rules: Rules) -> tuple[object, ...]:
    """The order between teams, by the first job of each."""
    step, claimant = queue[0]
    more = 0 if step.held else step.workers * claimant.devices
    # It need not be this pool that it grows in, but of those it may grow in this is the one it tries first.
    pool = claimant.groups[0].for_growth[0]
    return (
        *step.key[:3],
        shares(books, claimant, node, rules.fairness_grain, pool=pool, more=more),
        *step.key[3:],
    )


def next_step(claimant: Claimant, node: int, rules: Rules, *, new_only: bool = False) -> Step | None:
    """The next size; None, with the reason in ``stop``, if there is none.

    Args:
        claimant: whose.
        node: on whose quota.
        rules: for what is worth its devices.
        new_only: what it has elsewhere cannot stay on this quota.
    """
    policy, curve, limit = claimant.state.spec.elastic_policy, claimant.curve, claimant.limit
    now = claimant.entitled
    # Workers it has and that are not granted yet: something new would come on top of them.
    unplaced = 0 if claimant.lost else claimant.stays - claimant.placed
    size = following(policy, now)
    held = not new_only and size is not None and size - now <= unplaced
    if not held and node == claimant.path[claimant.level]:
        # The last quota it may use: what is not granted here is lost, and others may take its place.
        claimant.lost = True
    elif not held:
        now += unplaced
        size = following(policy, now)
    if size is None or size > limit:
        claimant.stop = claimant.limited_by
        return None
    efficiency = curve.efficiency(now, size)
    if efficiency < rules.worth * (LAX if held else 1.0) and not (held and claimant.cooling):
        claimant.stop = NotWorth(workers=size, efficiency=efficiency)
        return None
    if not held and now == claimant.stays == claimant.size:
        # The first step beyond what it has pays for the resize.
        while curve.gain(now, size) < claimant.resize_log:
            larger = following(policy, size)
            if larger is None or larger > limit:
                claimant.stop = ResizeTooDear(cost_s=claimant.state.resize_s, horizon_s=rules.horizon_s)
                return None
            size = larger
    worth = curve.gain(now, size) / (size - now)
    if held:
        worth = STICKY * worth + claimant.resize_log / (size - now)
    key = (
        -claimant.priority,
        now >= claimant.needed,
        not (held and claimant.cooling),
        -worth / claimant.devices,
        claimant.number,
    )
    return Step(key, size - now, held)
