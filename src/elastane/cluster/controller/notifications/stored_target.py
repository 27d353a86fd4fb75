"""A notification target and its messages as the controller stores them. Pure."""

import msgspec

from elastane.cluster.nouns.notifications import NotificationState, Occasion


class Message(msgspec.Struct, frozen=True, kw_only=True):
    """A message about one event.

    Args:
        key: names the event; a target never gets two messages with one key.
        on: name of the occasion.
        text: in one line, without markup.
    """

    key: str
    on: str
    job: str
    text: str


class StoredTarget(msgspec.Struct, frozen=True, kw_only=True):
    """A target. `elastane.cluster.nouns.notifications.NotificationTarget` describes most fields.

    Args:
        sealed: the URL, encrypted with the key in the home of the controller.
        last_event: number of the last event that was made into messages.
    """

    id: str
    team: str
    on: tuple[Occasion, ...]
    service: str
    host: str
    user: str
    created_s: float
    sealed: bytes = b""
    last_event: int = 0
    failures: int = 0
    retry_at_s: float = 0.0
    why: str = ""
    sent_s: float | None = None
    left_out: int = 0


class StoredNotification(msgspec.Struct, frozen=True, kw_only=True):
    """A message of a target.

    Args:
        batch: name of the attempt that sends it, with others perhaps; empty: no attempt has begun.
        again: an earlier attempt ended without a trace, so it may have been sent before.
    """

    id: int
    target: str
    message: Message
    state: NotificationState
    made_s: float
    ended_s: float | None = None
    batch: str = ""
    again: bool = False
