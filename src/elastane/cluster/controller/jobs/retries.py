"""Retries of a job after a crash: which outcomes are retried, and when. Pure."""

from elastane.run.nouns.attempts import RETRYABLE, AttemptOutcome

FIRST_RETRY_S = 2.0
LONGEST_RETRY_S = 300.0
DOUBLINGS = 8
"""The wait reaches its maximum within this many doublings. Without this bound, a float would overflow."""

MISSING_OUTCOME = AttemptOutcome(code=RETRYABLE + 9, why="its agent has ended without an outcome")
"""The outcome of an attempt whose agent has written none."""


def is_permanent(outcome: AttemptOutcome) -> bool:
    """Return whether another attempt would end in the same way: exit codes from 1 to 127, as in Kubeflow."""
    return 0 < outcome.code < RETRYABLE


def compute_retry_wait(crashes: int) -> float:
    """Return the seconds from crash number ``crashes`` to the next attempt; they double with every crash."""
    return min(FIRST_RETRY_S * 2.0 ** min(crashes - 1, DOUBLINGS), LONGEST_RETRY_S)


def compute_retry_time(retry_at_s: float, now_s: float) -> float:
    """Return the earliest time of the next attempt; 0: at once.

    No wait is longer than `LONGEST_RETRY_S`, also after a clock was set back.
    """
    return retry_at_s if retry_at_s <= now_s + LONGEST_RETRY_S else 0.0
