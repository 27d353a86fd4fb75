"""Rate limits by token bucket: a bucket fills with time, and each request takes one unit out of it."""

import threading
from collections import OrderedDict

import msgspec

REMEMBERED = 10_000
"""Number of buckets kept. The one unused for longest is dropped; it is full, or nearly so."""


class Rate(msgspec.Struct, frozen=True):
    """A rate limit.

    Args:
        per_s: sustained requests per second.
        burst: requests at once after a pause.
    """

    per_s: float
    burst: int


class Bucket(msgspec.Struct, frozen=True):
    """The state of one bucket.

    Args:
        left: requests left, with a fraction.
        at_s: time of that state.
    """

    left: float
    at_s: float


def take_request(bucket: Bucket | None, rate: Rate, now_s: float) -> tuple[Bucket, float]:
    """Take one request out of a bucket; None is a full one.

    Returns:
        The bucket afterwards, and the seconds to wait first; 0: no wait is needed.
    """
    if bucket is None:
        bucket = Bucket(rate.burst, now_s)
    left = min(rate.burst, bucket.left + max(0.0, now_s - bucket.at_s) * rate.per_s)
    if left < 1:
        return Bucket(left, now_s), (1 - left) / rate.per_s
    return Bucket(left - 1, now_s), 0.0


class Rates:
    """The buckets of all clients, by key: a token or an address."""

    def __init__(self, rate: Rate) -> None:
        self._rate = rate
        self._buckets: OrderedDict[str, Bucket] = OrderedDict()
        self._lock = threading.Lock()

    def wait_s(self, client: str, now_s: float) -> float:
        """Take one request from a client's bucket, and return the seconds to wait first; 0: none."""
        with self._lock:
            bucket, wait_s = take_request(self._buckets.pop(client, None), self._rate, now_s)
            self._buckets[client] = bucket
            if len(self._buckets) > REMEMBERED:
                self._buckets.popitem(last=False)
        return wait_s
