"""The checks of a controller and of its store."""

from typing import Literal, TypeAlias

from elastane.api.bodies import AnswerBody

Check: TypeAlias = Literal["file", "integrity", "age", "reading", "writing", "turns"]
"""What a controller checks of itself: that its store's files are those that it opened, that their content is
whole, that no stored change is missing again, that the store answers, that it takes changes, and that the
loop's turns succeed."""


class HealthProblem(AnswerBody, frozen=True, kw_only=True):
    """A check that fails now.

    Args:
        check: which. While ``file``, ``integrity`` or ``age`` fails, the store is not used at all: nothing is
            planned, and every request that needs it is refused.
        what: happened.
        do: what an operator can do about it.
        since_s: when it was first found, in seconds since 1970.
    """

    check: Check
    what: str
    do: str
    since_s: float


class Health(AnswerBody, frozen=True, kw_only=True, omit_defaults=True):
    """Whether the controller and its store work.

    Args:
        status: ``failing``: some check fails, so that some or all changes cannot be made; jobs go on as they
            are.
        problems: those checks, oldest first.
    """

    status: Literal["ok", "failing"]
    problems: tuple[HealthProblem, ...] = ()
