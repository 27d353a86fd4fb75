"""The checks of a controller and of its store."""

from typing import Literal, TypeAlias

from elastane.common.bodies import AnswerBody

Check: TypeAlias = Literal["file", "integrity", "age", "reading", "writing", "turns"]
"""A check that a controller makes of itself: the store's files are those that it opened (``file``), their
content is intact (``integrity``), no stored change has been lost (``age``), the store answers (``reading``)
and accepts changes (``writing``), and the turns of the control loop succeed (``turns``)."""


class HealthProblem(AnswerBody, frozen=True, kw_only=True):
    """A failing check.

    Args:
        check: the check. While ``file``, ``integrity`` or ``age`` fails, the controller does not use the
            store: it plans nothing and refuses every request that needs the store.
        what: happened.
        do: the remedy for the operator.
        since_s: when the failure was first found, in seconds since 1970.
    """

    check: Check
    what: str
    do: str
    since_s: float


class Health(AnswerBody, frozen=True, kw_only=True, omit_defaults=True):
    """Whether the controller and its store work.

    Args:
        status: ``failing``: some check fails, so some or all changes cannot be made; jobs continue as they
            are.
        problems: the failing checks, oldest first.
    """

    status: Literal["ok", "failing"]
    problems: tuple[HealthProblem, ...] = ()
