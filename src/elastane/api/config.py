"""Everything that operators declare, as one document."""

from typing import Any, Literal

from elastane.api.bodies import AnswerBody, RequestBody
from elastane.api.pools import Pool
from elastane.api.priorities import PriorityClass
from elastane.api.quotas import Cohort, Team
from elastane.api.reservations import Reservation
from elastane.api.scheduling_rules import SchedulingRules


class Trigger(RequestBody, frozen=True, kw_only=True):
    """A rule that turns a reported metric into a limit.

    While it is above ``above``, or below ``below``, jobs may have no more than ``limit`` devices of the pool.
    At least one of the two is there.

    Args:
        name: unique.
        metric: as it is reported.
        above: None: does not matter.
        below: None: does not matter.
        pool: whose devices.
        limit: how many of them jobs may still have.
    """

    name: str
    metric: str
    above: float | None = None
    below: float | None = None
    pool: str
    limit: int


class Config(RequestBody, frozen=True, kw_only=True, omit_defaults=True):
    """Everything that operators declare, as one document. What is None is left as it is."""

    version: Literal[1] = 1
    cohorts: tuple[Cohort, ...] | None = None
    teams: tuple[Team, ...] | None = None
    priorities: tuple[PriorityClass, ...] | None = None
    pools: tuple[Pool, ...] | None = None
    reservations: tuple[Reservation, ...] | None = None
    triggers: tuple[Trigger, ...] | None = None
    rules: SchedulingRules | None = None


class Change(AnswerBody, frozen=True, kw_only=True, omit_defaults=True):
    """One difference between two configurations; ``before`` and ``after`` are whole documents."""

    kind: str
    name: str
    change: Literal["add", "change", "remove"]
    before: dict[str, Any] | None = None
    after: dict[str, Any] | None = None
