"""The configuration of a cluster: everything that operators declare, as one document."""

from typing import Any, Literal

from elastane.cluster.nouns.pools import Pool
from elastane.cluster.nouns.priorities import PriorityClass
from elastane.cluster.nouns.quotas import Cohort, Team
from elastane.cluster.nouns.reservations import Reservation
from elastane.cluster.nouns.scheduling_rules import SchedulingRules
from elastane.common.bodies import AnswerBody, RequestBody


class Trigger(RequestBody, frozen=True, kw_only=True):
    """A rule that turns a reported metric into a limit.

    While the metric is above ``above``, or below ``below``, jobs may have at most ``limit`` devices of the
    pool. At least one of the two is given.

    Args:
        name: unique.
        metric: as it is reported.
        above: None: no upper threshold.
        below: None: no lower threshold.
        pool: the pool of the devices.
        limit: how many of its devices jobs may have then.
    """

    name: str
    metric: str
    above: float | None = None
    below: float | None = None
    pool: str
    limit: int


class Config(RequestBody, frozen=True, kw_only=True, omit_defaults=True):
    """Everything that operators declare, as one document. A part that is None stays unchanged."""

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
