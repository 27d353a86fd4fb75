"""The parts of the controller that requests use, and their limits."""

import time
from collections.abc import Callable, Mapping

import msgspec

from elastane.cluster.controller.access.rates import Rate, Rates
from elastane.cluster.controller.rest.refusals import Refusals
from elastane.cluster.controller.store.database import Store
from elastane.cluster.nouns.cluster import Snapshot
from elastane.cluster.nouns.plans import Decision, Plan

MIB = 2**20


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """Limits for clients.

    Args:
        per_token: rate of requests with one token.
        per_address: rate of requests without a valid token from one address.
        body_bytes: size of a request's body.
        watchers: streams at one time.
        watchers_per_token: streams with one token.
        watchers_per_user: streams with all tokens of one user. Teams have a limit of their own.
    """

    per_token: Rate = Rate(per_s=100, burst=400)
    per_address: Rate = Rate(per_s=2, burst=20)
    body_bytes: int = 4 * MIB
    watchers: int = 1000
    watchers_per_token: int = 100
    watchers_per_user: int = 100


class Controller:
    """The parts of the controller that requests use.

    Args:
        store: of the cluster.
        wake: called after each change, so that the loop plans soon; must not block.
        plan: of the scheduler, to predict the effect of a configuration.
        explain: returns a decision's reasons as sentences, given the team of each job.
        check_team: raises `BadInput` if the engine has no system user for the jobs of a team.
        settings: limits.
        clock: seconds since 1970.
    """

    def __init__(
        self,
        store: Store,
        *,
        wake: Callable[[], None],
        plan: Callable[[Snapshot], Plan],
        explain: Callable[[Decision, Mapping[str, str]], tuple[str, ...]],
        check_team: Callable[[str], object] = str,
        settings: Settings = Settings(),  # noqa: B008 - frozen
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.store = store
        self.wake = wake
        self.plan = plan
        self.explain = explain
        self.check_team = check_team
        self.settings = settings
        self.clock = clock
        self.by_token = Rates(settings.per_token)
        self.by_address = Rates(settings.per_address)
        self.refusals = Refusals(store)
