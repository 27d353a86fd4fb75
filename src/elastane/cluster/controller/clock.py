"""Elapsed time on a clock that may be set back. Pure."""


def has_elapsed(since_s: float, for_s: float, now_s: float) -> bool:
    """Return whether ``for_s`` seconds have passed since ``since_s``.

    A clock that shows an earlier time was set back. The elapsed time is then unknown, and counts as passed.
    """
    return not since_s <= now_s < since_s + for_s
