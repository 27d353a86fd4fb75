"""How often somebody may ask: a bucket each, which fills by time and empties by use (a token bucket)."""

import threading
from collections import OrderedDict

import msgspec

REMEMBERED = 10_000
"""Buckets kept; one that is forgotten was the longest untouched, and is full by then or soon."""


class Rate(msgspec.Struct, frozen=True):
    """A limit.

    Args:
        per_s: requests a second, in the long run.
        burst: requests at once after a rest.
    """

    per_s: float
    burst: int


class Bucket(msgspec.Struct, frozen=True):
    """What is left of somebody's limit.

    Args:
        left: requests, with a fraction.
        at_s: when that was so.
    """

    left: float
    at_s: float


def take(bucket: Bucket | None, rate: Rate, now_s: float) -> tuple[Bucket, float]:
    """Takes one request out of a bucket; None is a full one.

    Returns:
        The bucket afterwards, and the seconds to wait first; 0: go ahead.
    """
    if bucket is None:
        bucket = Bucket(rate.burst, now_s)
    left = min(rate.burst, bucket.left + max(0.0, now_s - bucket.at_s) * rate.per_s)
    if left < 1:
        return Bucket(left, now_s), (1 - left) / rate.per_s
    return Bucket(left - 1, now_s), 0.0


class Rates:
    """Everybody's buckets, by whatever name they go by."""

    def __init__(self, rate: Rate) -> None:
        self._rate = rate
        self._buckets: OrderedDict[str, Bucket] = OrderedDict()
        self._lock = threading.Lock()

    def wait_s(self, who: str, now_s: float) -> float:
        """Takes one request of theirs; returns the seconds they must wait first, 0 if none."""
        with self._lock:
            bucket, wait_s = take(self._buckets.pop(who, None), self._rate, now_s)
            self._buckets[who] = bucket
            if len(self._buckets) > REMEMBERED:
                self._buckets.popitem(last=False)
        return wait_s
