"""Events, decisions and audit lines of a cluster."""

import msgspec

from elastane.common.bodies import AnswerBody


class Event(AnswerBody, frozen=True, kw_only=True, omit_defaults=True):
    """A change in the cluster. ``id`` grows; ``team`` and ``job`` are empty if the event concerns neither."""

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
    """An action that a user requested, done or refused.

    Args:
        id: grows.
        time_s: when.
        token: id of the token of the request.
        user: owner of the token.
        action: the requested action.
        target: the object of the action.
        team: team of the target; empty: the target belongs to the cluster. If the line stands for several
            refusals: team of the token.
        allowed: the action was done.
        detail: the changes, or the reason for the refusal.
        times: number of refusals of the token that this line stands for; it describes the last one.
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
