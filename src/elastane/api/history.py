"""Events, decisions and audit lines: what has happened."""

import msgspec

from elastane.api.bodies import AnswerBody


class Event(AnswerBody, frozen=True, kw_only=True, omit_defaults=True):
    """Something that happened. ``id`` grows; ``team`` and ``job`` are empty where it is about neither."""

    id: int
    time_s: float
    kind: str
    team: str = ""
    job: str = ""
    message: str = ""
    detail: dict[str, str | int | float | bool | None] = msgspec.field(default_factory=dict)


class DecisionRecord(AnswerBody, frozen=True, kw_only=True):
    """A decision about a job, and its reason in sentences."""

    id: int
    time_s: float
    action: str
    workers: dict[str, int]
    sentences: tuple[str, ...]


class AuditLine(AnswerBody, frozen=True, kw_only=True):
    """Who did what, or was not allowed to.

    Args:
        id: grows.
        time_s: when.
        token: that asked.
        user: whom the token speaks for.
        action: what was asked for.
        target: with what.
        team: the target belongs to; empty: to the cluster. Of several refusals: of the token.
        allowed: it was done.
        detail: what was changed, or why it was refused.
        times: so many refusals of the token are told by this line; the last one is described.
    """

    id: int
    time_s: float
    token: str
    user: str
    action: str
    target: str
    team: str
    allowed: bool
    detail: str
    times: int = 1
