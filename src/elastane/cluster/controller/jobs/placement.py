"""The pools of a job's workers, for engines that can only count them. Pure."""

from collections.abc import Mapping


def assign_pools(workers: int, granted: Mapping[str, int], before: Mapping[str, int]) -> dict[str, int]:
    """Assign workers to pools.

    Workers stay in their pool if the grant allows it. The next ones go where the grant has more, and only the
    rest stays where it was, because it is leaving: on one machine, pools are only names.

    Args:
        workers: their observed number.
        granted: workers by pool.
        before: workers by pool at the last observation.
    """
    found: dict[str, int] = {}
    left = workers

    def put(pool: str, most: int) -> None:
        nonlocal left
        here = min(most, left)
        if here > 0:
            found[pool] = found.get(pool, 0) + here
            left -= here

    for pool, most in granted.items():
        put(pool, min(most, before.get(pool, 0)))
    for pool, most in granted.items():
        put(pool, most - found.get(pool, 0))
    for pool, some in before.items():
        put(pool, some - found.get(pool, 0))
    for pool in (*granted, *before):
        # More workers than known: one is leaving and its replacement has arrived.
        put(pool, left)
    return found


def count_held(held: dict[str, int], granted: dict[str, int], given: dict[str, int]) -> dict[str, int]:
    """Return the workers that count as held, by pool, once the grant changes from ``granted`` to ``given``.

    The engine may have received the old grant. So if any pool shrinks, the whole old grant counts as held
    until an observation says otherwise, also in pools that keep their part: an engine counts workers, not
    pools.
    """
    if all(given.get(pool, 0) >= workers for pool, workers in granted.items()):
        return dict(held)
    return {pool: max(held.get(pool, 0), granted.get(pool, 0)) for pool in held | granted}
