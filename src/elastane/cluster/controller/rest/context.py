"""The parts of the controller that requests use, their limits, and the rate limits of clients.

A rate limit is a token bucket: it fills with time, and each request takes one unit out of it.
"""

import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Coroutine, Mapping
from pathlib import Path
from typing import Any

import msgspec

from elastane.cluster.controller.agents.kept_records import RecordKeeper
from elastane.cluster.controller.code_files import CodeFiles
from elastane.cluster.controller.metrics.meters import Meters
from elastane.cluster.controller.rest.refusals import Refusals
from elastane.cluster.controller.store.database import Store
from elastane.cluster.nouns.agents import EngineFinding
from elastane.cluster.nouns.cluster import Snapshot
from elastane.cluster.nouns.config import DeclaredEngine
from elastane.cluster.nouns.plans import Decision, Plan
from elastane.run.machines.joining.code_archive import LARGEST_ARCHIVE_BYTES

REMEMBERED = 10_000
"""Number of buckets kept. The one unused for longest is dropped; it is full, or nearly so."""
MIB = 2**20


class Rate(msgspec.Struct, frozen=True):
    """A rate limit.

    Args:
        per_s: sustained requests per second.
        burst: requests at once after a pause.
    """

    per_s: float
    burst: int


class Bucket(msgspec.Struct, frozen=True):
    """The state of one bucket: the requests that are left, with a fraction."""

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


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """Limits for clients.

    Args:
        per_token: rate of requests with one token.
        per_address: rate of requests without a valid token from one address.
        watchers: streams at one time.
        watchers_per_token: streams with one token.
        watchers_per_user: streams with all tokens of one user. Teams have a limit of their own.
        code_bytes: an archive of code that is sent.
        uploads: archives of code that arrive at one time.
        uploads_per_user: of these, from one user.
    """

    per_token: Rate = Rate(per_s=100, burst=400)
    per_address: Rate = Rate(per_s=2, burst=20)
    body_bytes: int = 4 * MIB
    watchers: int = 1000
    watchers_per_token: int = 100
    watchers_per_user: int = 100
    code_bytes: int = LARGEST_ARCHIVE_BYTES
    uploads: int = 8
    uploads_per_user: int = 2


USUAL_SETTINGS = Settings()


async def _find_nothing(*_: object) -> tuple[EngineFinding, ...]:
    return ()


class Controller:
    """The parts of the controller that requests use.

    Args:
        wake: called after each change, so that the loop plans soon; must not block.
        plan: of the scheduler, to predict the effect of a configuration.
        explain: returns a decision's reasons as sentences, given the team of each job.
        home: directory of the controller, in which jobs run.
        examine: looks for all that an engine needs, given the options of its pools by name.
        check_team: raises `BadInput` if the engine has no system user for the jobs of a team.
        clock: seconds since 1970.
        meters: those to which the loop adds; None: new ones.
    """

    def __init__(
        self,
        store: Store,
        *,
        wake: Callable[[], None],
        plan: Callable[[Snapshot], Plan],
        explain: Callable[[Decision, Mapping[str, str]], tuple[str, ...]],
        home: Path = Path(),
        examine: Callable[
            [DeclaredEngine, Mapping[str, Mapping[str, str]]], Coroutine[Any, Any, tuple[EngineFinding, ...]]
        ] = _find_nothing,
        check_team: Callable[[str], object] = str,
        settings: Settings = USUAL_SETTINGS,
        clock: Callable[[], float] = time.time,
        meters: Meters | None = None,
    ) -> None:
        self.store = store
        self.wake = wake
        self.plan = plan
        self.explain = explain
        self.home = home
        self.code = CodeFiles(home)
        self.examine = examine
        self.check_team = check_team
        self.settings = settings
        self.clock = clock
        self.by_token = Rates(settings.per_token)
        self.by_address = Rates(settings.per_address)
        self.refusals = Refusals(store)
        self.records = RecordKeeper(home)
        self.meters = Meters(clock) if meters is None else meters
