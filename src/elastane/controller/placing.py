"""In which pools the workers of a job are, where an engine can only count them. Pure."""

from collections.abc import Mapping


def placed(workers: int, granted: Mapping[str, int], before: Mapping[str, int]) -> dict[str, int]:
    """So many workers, by pool.

    Those that may stay where they were do. The next ones are where the grant wants more, and only what is
    left is still where it was, on its way out: on one machine, pools are nothing but names.

    Args:
        workers: seen now.
        granted: by pool.
        before: where they were when last seen.
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
        # More than anybody knew of: a worker on its way out whose successor has arrived.
        put(pool, left)
    return found


def still_held(held: dict[str, int], granted: dict[str, int], given: dict[str, int]) -> dict[str, int]:
    """What counts as held, by pool, once ``given`` is decided in place of ``granted``.

    What was granted may have been told, so once less is given anywhere, all of it counts as held until it is
    seen not to be: also where the pool keeps its part, because an engine counts workers, not pools.
    """
    if all(given.get(pool, 0) >= workers for pool, workers in granted.items()):
        return dict(held)
    return {pool: max(held.get(pool, 0), granted.get(pool, 0)) for pool in held | granted}
