"""Notification targets and their messages: queries and changes of their rows, and of jobs that they need."""

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any

import msgspec
from sqlalchemy import ColumnElement, Connection, Row, delete, func, insert, or_, select, update

from elastane.cluster.controller.jobs.stored_job import StoredJob
from elastane.cluster.controller.notifications.deliveries import MOST_WAITING
from elastane.cluster.controller.notifications.occasions import WAITS_FROM, WaitingJob
from elastane.cluster.controller.notifications.stored_target import Message, StoredNotification, StoredTarget
from elastane.cluster.controller.store import rows
from elastane.cluster.controller.store.columns import JsonColumn, encode_json, is_moment
from elastane.cluster.controller.store.jobs import split_names
from elastane.cluster.controller.store.tables import events, jobs, notification_targets, notifications
from elastane.cluster.nouns.notifications import Occasion
from elastane.common.untrusted_data import Malformed

KEPT = 100
"""Newest messages of a target that are kept after their end."""
CHANGING = ("last_event", "failures", "retry_at_s", "why", "sent_s", "left_out")
"""Columns of a target that change after it was added."""
JUDGED = (
    "number",
    "name",
    "team",
    "state",
    "spec",
    "observed",
    "resized_s",
    "retry_at_s",
    "using",
    "using_since_s",
    "spent",
    "active_since_s",
)
"""Columns of a job that its messages depend on."""
_decode_occasions: JsonColumn[tuple[Occasion, ...]] = JsonColumn(tuple[Occasion, ...])


# -- targets -----------------------------------------------------------------------------------------------


def list_targets(
    tx: Connection, teams: tuple[str, ...] | None = None, *, of_all: bool = True
) -> tuple[StoredTarget, ...]:
    """Return targets, oldest first: of teams, or of all, perhaps also those for the jobs of every team."""
    query = select(notification_targets).order_by(notification_targets.c.created_s, notification_targets.c.id)
    if teams is not None:
        query = query.where(notification_targets.c.team.in_(teams))
    elif not of_all:
        query = query.where(notification_targets.c.team != "*")
    return tuple(_decode_target(row) for row in tx.execute(query))


def find_target(tx: Connection, id_: str) -> StoredTarget | None:
    row = tx.execute(select(notification_targets).where(notification_targets.c.id == id_)).one_or_none()
    return None if row is None else _decode_target(row)


def _decode_target(row: Row[Any]) -> StoredTarget:
    values = dict(row._mapping)
    try:
        on = _decode_occasions(values.pop("occasions"))
    except Malformed:
        # The list shows it without occasions, and it can still be removed.
        on = ()
    return StoredTarget(**values, on=on)


def count_targets(tx: Connection, team: str) -> int:
    query = select(func.count()).where(notification_targets.c.team == team)
    return tx.execute(query).scalar_one()


def insert_target(tx: Connection, target: StoredTarget) -> None:
    values = msgspec.structs.asdict(target)
    values["occasions"] = encode_json(values.pop("on"))
    tx.execute(insert(notification_targets).values(values))


def write_target(tx: Connection, target: StoredTarget) -> None:
    """Store what has changed of a target, if it was not removed."""
    here = update(notification_targets).where(notification_targets.c.id == target.id)
    tx.execute(here.values({name: getattr(target, name) for name in CHANGING}))


def forget_target(tx: Connection, id_: str) -> None:
    """Delete a target and its messages."""
    tx.execute(delete(notifications).where(notifications.c.target == id_))
    tx.execute(delete(notification_targets).where(notification_targets.c.id == id_))


# -- messages ----------------------------------------------------------------------------------------------


def add_messages(
    tx: Connection, target: StoredTarget, messages: Iterable[Message], now_s: float
) -> StoredTarget:
    """Store the messages that the target does not have yet, and return it.

    If too many wait, the others are kept without a text, so that they are not made again.
    """
    new = choose_new(tx, target.id, messages)
    if not new:
        return target
    waiting = select(func.count()).where(
        notifications.c.target == target.id, notifications.c.state == "waiting"
    )
    room = max(0, MOST_WAITING - tx.execute(waiting).scalar_one())
    tx.execute(
        insert(notifications),
        [
            {
                "target": target.id,
                "key": message.key,
                "occasion": message.on,
                "job": message.job,
                "text": message.text if place < room else "",
                "state": "waiting" if place < room else "given-up",
                "made_s": now_s,
                "ended_s": None if place < room else now_s,
                "batch": "",
                "again": 0,
            }
            for place, message in enumerate(new)
        ],
    )
    return msgspec.structs.replace(target, left_out=target.left_out + max(0, len(new) - room))


def choose_new(tx: Connection, target: str, messages: Iterable[Message]) -> list[Message]:
    """Return the messages with keys that the target does not have yet."""
    new = {message.key: message for message in messages}
    for some in split_names(list(new)):
        here = (notifications.c.target == target) & notifications.c.key.in_(some)
        for key in tx.execute(select(notifications.c.key).where(here)).scalars():
            del new[key]
    return list(new.values())


def map_waiting(tx: Connection) -> Mapping[str, list[StoredNotification]]:
    """Return the messages that wait, by id of their target, oldest first."""
    found: dict[str, list[StoredNotification]] = defaultdict(list)
    query = select(notifications).where(notifications.c.state == "waiting").order_by(notifications.c.id)
    for row in tx.execute(query):
        found[row.target].append(_decode_notification(row))
    return found


def count_waiting(tx: Connection) -> Mapping[str, int]:
    """Return the number of messages of each target that have not been sent yet."""
    query = (
        select(notifications.c.target, func.count().label("messages"))
        .where(notifications.c.state.in_(("waiting", "sending")))
        .group_by(notifications.c.target)
    )
    return {row.target: row.messages for row in tx.execute(query)}


def list_batches(tx: Connection) -> Mapping[str, str]:
    """Return the target of each attempt without a stored outcome, by name of the attempt."""
    query = (
        select(notifications.c.batch, notifications.c.target)
        .where(notifications.c.state == "sending")
        .distinct()
    )
    return {row.batch: row.target for row in tx.execute(query)}


def list_notifications(
    tx: Connection, *, batch: str = "", target: str = "", limit: int = KEPT
) -> tuple[StoredNotification, ...]:
    """Return the messages that an attempt sends, or the newest ones of a target; newest first."""
    here: ColumnElement[bool] = notifications.c.target == target
    if batch:
        here = (notifications.c.state == "sending") & (notifications.c.batch == batch)
    query = select(notifications).where(here).order_by(notifications.c.id.desc()).limit(limit)
    return tuple(_decode_notification(row) for row in tx.execute(query))


def _decode_notification(row: Row[Any]) -> StoredNotification:
    return StoredNotification(
        id=row.id,
        target=row.target,
        message=Message(key=row.key, on=row.occasion, job=row.job, text=row.text),
        state=row.state,
        made_s=row.made_s if is_moment(row.made_s) else 0.0,
        ended_s=row.ended_s if is_moment(row.ended_s) else None,
        batch=row.batch,
        again=bool(row.again),
    )


def write_notification(tx: Connection, entry: StoredNotification) -> None:
    """Store what has changed of a message. The text of one that has ended is not needed any more."""
    values: dict[str, object] = {
        "state": entry.state,
        "ended_s": entry.ended_s,
        "batch": entry.batch,
        "again": int(entry.again),
    }
    values |= {} if entry.ended_s is None else {"text": ""}
    tx.execute(update(notifications).where(notifications.c.id == entry.id).values(values))


def forget_old_notifications(tx: Connection) -> None:
    """Delete messages that have ended, with keys that cannot occur again, except the newest of each target.

    Events are made into messages once. A job that has not ended may have the same message again.
    """
    living = select(jobs.c.name).where(jobs.c.ended_s.is_(None))
    for target in list_targets(tx):
        ended = (notifications.c.target == target.id) & notifications.c.state.in_(("sent", "given-up"))
        newest = (
            select(notifications.c.id).where(ended).order_by(notifications.c.id.desc()).offset(KEPT).limit(1)
        )
        last = tx.execute(newest).scalar_one_or_none()
        if last is not None:
            is_event = notifications.c.key.startswith("event:")
            unneeded = or_(is_event, notifications.c.job.not_in(living))
            tx.execute(delete(notifications).where(ended, notifications.c.id <= last, unneeded))


# -- jobs --------------------------------------------------------------------------------------------------


def list_begun_jobs(tx: Connection, teams: Collection[str] | None) -> tuple[StoredJob, ...]:
    """Return the jobs of teams that have begun and not ended, as messages need them; None: of all teams."""
    query = select(*(jobs.c[name] for name in JUDGED)).where(
        jobs.c.ended_s.is_(None), jobs.c.started_s.is_not(None), *_filter_teams(teams)
    )
    return tuple(rows.decode_job(row) for row in tx.execute(query))


def list_waiting_jobs(tx: Connection, teams: Collection[str] | None, until_s: float) -> Iterator[WaitingJob]:
    """Yield the jobs in the queue, with the begin of their wait.

    Args:
        teams: only those of these teams; None: of all.
        until_s: only those that were submitted before.
    """
    query = select(jobs.c.name, jobs.c.team, jobs.c.number).where(
        jobs.c.state == "queued", jobs.c.wanted == "run", jobs.c.submitted_s <= until_s, *_filter_teams(teams)
    )
    found = {row.name: row for row in tx.execute(query)}
    for some in split_names(found):
        since = (
            select(events.c.job, func.max(events.c.id).label("id"), func.max(events.c.time_s).label("time_s"))
            .where(events.c.job.in_(some), events.c.kind.in_(WAITS_FROM))
            .group_by(events.c.job)
        )
        begins = {row.job: row for row in tx.execute(since) if is_moment(row.time_s)}
        for row in map(found.__getitem__, begins):
            begin = begins[row.name]
            yield WaitingJob(
                name=row.name, team=row.team, number=row.number, event=begin.id, since_s=begin.time_s
            )


def _filter_teams(teams: Collection[str] | None) -> tuple[ColumnElement[bool], ...]:
    return () if teams is None else (jobs.c.team.in_(teams),)
