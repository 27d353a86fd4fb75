"""Notification targets: services that get a message when something happens to the jobs of a team."""

import re
from collections.abc import Iterable
from typing import Literal, TypeAlias, get_args

import msgspec

from elastane.common.bodies import AnswerBody, RequestBody
from elastane.common.durations import EXAMPLES, format_duration, parse_duration_s
from elastane.common.errors import BadField

OccasionKind: TypeAlias = Literal["failed", "ended", "reclaimed", "stuck", "waits", "budget"]
NotificationState: TypeAlias = Literal["waiting", "sending", "sent", "given-up"]

WRITE = (
    "write some of failed, ended, reclaimed, stuck, stuck:1h, waits:2h and budget:80%, with commas between"
)
MOST_OCCASIONS = 16
WHOLE = 100
"""Per cent."""
STUCK_S = 1800.0
"""A job is stuck after this time without a step, unless its target names another one."""
SHORTEST_S, LONGEST_S = 60.0, 366 * 86400.0


class Occasion(msgspec.Struct, frozen=True):
    """Something of which a target gets a message.

    Args:
        kind: ``failed``: a job has failed; ``ended``: it has finished, failed, or was cancelled;
            ``reclaimed``: it loses devices to others; ``stuck``: it makes no step; ``waits``: it is in the
            queue; ``budget``: it has spent a part of its budget.
        limit: seconds for ``stuck`` and ``waits``; a percentage for ``budget``; otherwise 0.
    """

    kind: OccasionKind
    limit: float = 0.0

    @property
    def name(self) -> str:
        """The occasion as users write it: ``waits:2h``."""
        match self.kind:
            case "stuck" | "waits":
                return f"{self.kind}:{format_duration(self.limit, parts=4).replace(' ', '')}"
            case "budget":
                return f"{self.kind}:{self.limit:g}%"
            case _:
                return self.kind


class NewNotificationTarget(RequestBody, frozen=True, kw_only=True):
    """A request for a new target.

    Args:
        team: the team of the jobs; ``*``: every team, only for operators.
        on: the occasions, such as ``failed`` or ``waits:2h``; see `Occasion`.
        url: of the service, in the form of apprise: ``slack://...``. It is a secret.
    """

    team: str
    on: tuple[str, ...]
    url: str


class NotificationTarget(AnswerBody, frozen=True, kw_only=True):
    """A target, without its URL.

    Args:
        id: its name: ``ntf-0123456789ab``.
        service: the kind of the service: ``slack``.
        host: the host that its URL names; empty: the service decides it.
        user: the user that has added it.
        waiting: number of messages that have not been sent yet.
        sent_s: when a message was last sent; None: never.
        failures: number of failed attempts in a row.
        retry_at_s: after a failure, no message is sent before this time.
        left_out: number of messages that were dropped because too many waited.
        why: why the last attempt failed; empty: it did not.
    """

    id: str
    team: str
    on: tuple[str, ...]
    service: str
    host: str
    user: str
    created_s: float
    waiting: int
    sent_s: float | None
    failures: int
    retry_at_s: float
    left_out: int
    why: str


class Notification(AnswerBody, frozen=True, kw_only=True):
    """A message for a target, about one event.

    Args:
        id: grows.
        key: names the event; the message has it too. A target never gets two notifications with one key.
        job: its job; empty for a test.
        ended_s: when it was sent or given up; None: neither yet.
    """

    id: int
    key: str
    on: str
    job: str
    state: NotificationState
    made_s: float
    ended_s: float | None


def parse_occasions(texts: Iterable[str]) -> tuple[Occasion, ...]:
    """Return the occasions of a target, each once."""
    found = tuple(dict.fromkeys(map(_parse_occasion, texts)))
    if not 0 < len(found) <= MOST_OCCASIONS:
        raise BadField("on", f"names {len(found)} occasions", do=f"name 1 to {MOST_OCCASIONS}")
    return found


def _parse_occasion(text: str) -> Occasion:
    word, _, limit = text.strip().partition(":")
    kind = next((kind for kind in get_args(OccasionKind) if kind == word), None)
    match kind:
        case None:
            raise BadField("on", f"{text[:100]!r} is not an occasion", do=WRITE)
        case "waits" | "stuck":
            return Occasion(kind, STUCK_S if kind == "stuck" and not limit else _parse_limit_s(text, limit))
        case "budget":
            return Occasion(kind, _parse_percentage(text, limit))
        case _:
            if limit:
                raise BadField("on", f"{text[:100]!r} has a limit, and {kind} has none", do=f"write {kind}")
            return Occasion(kind)


def _parse_limit_s(text: str, limit: str) -> float:
    try:
        found = parse_duration_s(limit)
    except (ValueError, OverflowError):
        found = 0.0
    if not SHORTEST_S <= found <= LONGEST_S:
        raise BadField(
            "on",
            f"{text[:100]!r} does not name a duration of a minute to a year",
            do=f"write a duration after the colon, such as {EXAMPLES}",
        )
    return float(round(found))


def _parse_percentage(text: str, limit: str) -> float:
    number = limit.removesuffix("%").strip()
    found = int(number) if re.fullmatch(r"\d{1,3}", number, re.ASCII) else 0
    if not limit.endswith("%") or not 0 < found <= WHOLE:
        raise BadField(
            "on", f"{text[:100]!r} does not name a part of a budget", do="write budget:1% to budget:100%"
        )
    return float(found)
