"""What the API stands on."""

import time
from collections.abc import Callable, Mapping

import msgspec

from elastane.api.cluster import Snapshot
from elastane.api.plans import Decision, Plan
from elastane.controller.access.rates import Rate, Rates
from elastane.controller.rest.refusals import Refusals
from elastane.controller.store.database import Store

MIB = 2**20


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """Limits for those who ask.

    Args:
        per_token: how often one token may ask.
        per_address: how often one address may fail to show a token.
        body_bytes: of a request.
        watchers: that are served at one time.
        watchers_per_token: of them with one token.
        watchers_per_user: of them with the tokens of one user. Teams have a limit of their own.
    """

    per_token: Rate = Rate(per_s=100, burst=400)
    per_address: Rate = Rate(per_s=2, burst=20)
    body_bytes: int = 4 * MIB
    watchers: int = 1000
    watchers_per_token: int = 100
    watchers_per_user: int = 100


class Controller:
    """Parts that requests meet.

    Args:
        store: with everything in it.
        wake: called after each change, so that the loop takes a turn soon; must not block.
        plan: the scheduler's, for what would be.
        words: a decision's reasons as sentences, given the team of each job.
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
        words: Callable[[Decision, Mapping[str, str]], tuple[str, ...]],
        check_team: Callable[[str], object] = str,
        settings: Settings = Settings(),  # noqa: B008 - frozen
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.store = store
        self.wake = wake
        self.plan = plan
        self.words = words
        self.check_team = check_team
        self.settings = settings
        self.clock = clock
        self.by_token = Rates(settings.per_token)
        self.by_address = Rates(settings.per_address)
        self.refusals = Refusals(store)
