"""Time that has passed on a clock that may be set, back too. Pure."""


def elapsed(since_s: float, for_s: float, now_s: float) -> bool:
    """Whether so long has passed.

    A clock that shows less than it did then was set back: nobody knows how long it has been, so it has been
    long enough.

    Args:
        since_s: on that clock.
        for_s: how long.
        now_s: on that clock.
    """
    return not since_s <= now_s < since_s + for_s
