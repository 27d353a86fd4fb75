"""Notification targets: add, list and remove them, and send a test. Answers never have their URLs."""

import re
import secrets
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http import HTTPStatus
from typing import Annotated

import msgspec
from fastapi import APIRouter, Response
from sqlalchemy import Connection

from elastane.cluster.controller.access.roles import EVERY_TEAM, Action, Target
from elastane.cluster.controller.notifications.notifier import SENDER
from elastane.cluster.controller.notifications.sender import Answer, ExaminedUrl, ExamineUrl
from elastane.cluster.controller.notifications.stored_target import Message, StoredNotification, StoredTarget
from elastane.cluster.controller.rest import team_limits
from elastane.cluster.controller.rest.bodies import build_reply, parse_body, respond
from elastane.cluster.controller.rest.caller import Caller, CallerParameter, ChangerParameter
from elastane.cluster.controller.rest.description import describe_route
from elastane.cluster.controller.rest.parameters import NotificationTargetId
from elastane.cluster.controller.rest.problems import Refusal, make_missing_error
from elastane.cluster.controller.store import history, notification_rows
from elastane.cluster.controller.store.replies import Reply
from elastane.cluster.nouns.notifications import (
    NewNotificationTarget,
    Notification,
    NotificationTarget,
    parse_occasions,
)
from elastane.common.bodies import Page
from elastane.common.errors import BadField
from elastane.common.field_checks import check_name
from elastane.common.untrusted_data import Decoder, Malformed

router = APIRouter(prefix="/v1/notification-targets", tags=["notifications"])
LONGEST_S = 25.0
"""Less than the time that a client waits for an answer."""
URL = re.compile(r"[A-Za-z][A-Za-z0-9]{1,19}://[!-~]{1,2000}", re.ASCII)
"""The form of every URL of apprise; the process that examines one knows the rest."""
TESTS_WAITING = 5
_examination = threading.Lock()
_decode_answer: Decoder[Answer] = Decoder(Answer, at_most_bytes=64 * 1024)


@router.get("", **describe_route(Page[NotificationTarget]))
def get_notification_targets(caller: CallerParameter) -> Response:
    """List the notification targets of your team, without their URLs. An operator gets all targets."""
    caller.require_right("notifications.read", Target(name="targets", team=caller.principal.team))
    with caller.begin_read() as tx:
        found = notification_rows.list_targets(tx, caller.teams, of_all=caller.of_the_cluster)
        waiting = notification_rows.count_waiting(tx)
    return respond(Page(items=tuple(_render(target, waiting.get(target.id, 0)) for target in found)))


@router.post("", **describe_route(NotificationTarget, takes=NewNotificationTarget, status=HTTPStatus.CREATED))
def post_notification_target(
    caller: ChangerParameter, new: Annotated[NewNotificationTarget, parse_body(NewNotificationTarget)]
) -> Response:
    """Add a target: a service that gets a message about events of the team's jobs."""
    on = parse_occasions(new.on)
    if new.team != EVERY_TEAM:
        check_name("team", new.team)
    # A target for all teams belongs to the cluster.
    owner = Target(name=f"team {new.team}", team="" if new.team == EVERY_TEAM else new.team)
    caller.require_right("notifications.write", owner)
    examined = _examine(caller, new.url)
    id_ = f"ntf-{secrets.token_hex(6)}"

    def do(tx: Connection) -> Reply:
        if not examined.is_hosted:
            caller.require_right("notifications.anywhere", owner)
        caller.require_right("notifications.write", owner)
        team_limits.check_targets(tx, new.team)
        target = StoredTarget(
            id=id_,
            team=new.team,
            on=on,
            service=examined.service,
            host=examined.host,
            user=caller.principal.user,
            created_s=caller.now_s,
            sealed=examined.sealed,
            last_event=history.find_newest_event(tx),
        )
        notification_rows.insert_target(tx, target)
        caller.set_detail(_describe(target))
        return build_reply(_render(target, 0), status=HTTPStatus.CREATED)

    return caller.change("notifications.add", f"notification target {id_}", do)


@router.delete("/{target}", **describe_route(None, status=HTTPStatus.NO_CONTENT))
def delete_notification_target(caller: ChangerParameter, target: NotificationTargetId) -> Response:
    """Remove a target. Its messages that have not been sent are dropped."""

    def do(tx: Connection) -> Reply:
        found = _find_allowed(tx, caller, target)
        notification_rows.forget_target(tx, found.id)
        caller.set_detail(_describe(found))
        return Reply(status=HTTPStatus.NO_CONTENT)

    return caller.change("notifications.remove", f"notification target {target}", do)


@router.post("/{target}/test", **describe_route(Notification, status=HTTPStatus.ACCEPTED))
def post_notification_test(caller: ChangerParameter, target: NotificationTargetId) -> Response:
    """Send a test message to a target now, also if its last message failed."""

    def do(tx: Connection) -> Reply:
        found = _find_allowed(tx, caller, target)
        newest = notification_rows.list_notifications(tx, target=found.id)
        if sum(entry.message.on == "test" and entry.ended_s is None for entry in newest) >= TESTS_WAITING:
            raise Refusal(
                HTTPStatus.CONFLICT,
                f"{TESTS_WAITING} test messages of {found.id} wait already",
                means="no other one was added",
                do="wait until they are sent, or remove the target",
            )
        key = f"test:{secrets.token_hex(6)}"
        text = f"This is a test of {found.id} (team {found.team}), sent by {caller.principal.user}"
        made = Message(key=key, on="test", job="", text=text)
        after = notification_rows.add_messages(tx, found, (made,), caller.now_s)
        notification_rows.write_target(tx, msgspec.structs.replace(after, retry_at_s=0.0))
        (entry,) = notification_rows.list_notifications(tx, target=found.id, limit=1)
        return build_reply(_render_notification(entry), status=HTTPStatus.ACCEPTED)

    return caller.change("notifications.test", f"notification target {target}", do)


@router.get("/{target}/notifications", **describe_route(Page[Notification]))
def get_notifications(caller: CallerParameter, target: NotificationTargetId) -> Response:
    """List the newest messages of a target, newest first, without their texts."""
    with caller.begin_read() as tx:
        found = _find_allowed(tx, caller, target, to_write=False)
        newest = notification_rows.list_notifications(tx, target=found.id)
    return respond(Page(items=tuple(map(_render_notification, newest))))


def _find_allowed(tx: Connection, caller: Caller, id_: str, *, to_write: bool = True) -> StoredTarget:
    """Return a target that the caller may read or change."""
    action: Action = "notifications.write" if to_write else "notifications.read"
    name = f"notification target {id_}"
    # First refuse callers that may change no target at all, without looking this one up.
    caller.require_right(action, Target(name=name, team=caller.principal.team))
    found = notification_rows.find_target(tx, id_)
    if found is None:
        raise make_missing_error(name)
    team = "" if found.team == EVERY_TEAM else found.team
    caller.require_right(action, Target(name=name, team=team, hidden=True))
    return found


def _examine(caller: Caller, url: str) -> ExaminedUrl:
    """Return what a URL names, and the URL encrypted. No answer and no log has it otherwise."""
    if not URL.fullmatch(url):
        raise BadField(
            "url",
            "is not a URL of at most 2000 letters, digits and signs",
            do="write for example slack://..., mailtos://... or jsons://...",
        )
    order = msgspec.json.encode(ExamineUrl(home=str(caller.controller.home), url=url))
    with _take_turn():
        try:
            done = subprocess.run(
                [sys.executable, *SENDER],
                input=order,
                stdout=subprocess.PIPE,
                # apprise prints parts of URLs.
                stderr=subprocess.DEVNULL,
                timeout=LONGEST_S,
                check=False,
            )
            answer = _decode_answer(done.stdout)
        except (subprocess.TimeoutExpired, Malformed, OSError):
            raise Refusal(
                HTTPStatus.SERVICE_UNAVAILABLE,
                "the process that examines URLs has failed",
                means="nothing was added",
                do="try again; if it fails again, check that apprise works: pip install 'elastane[notify]'",
            ) from None
    if isinstance(answer, ExaminedUrl):
        return answer
    status = HTTPStatus.UNPROCESSABLE_ENTITY
    raise Refusal(status, answer.what, means=answer.means or "nothing was added", do=answer.do)


@contextmanager
def _take_turn() -> Iterator[None]:
    """Let one examination run at a time, so that its processes do not take the memory of the machine."""
    if not _examination.acquire(blocking=False):
        raise Refusal(
            HTTPStatus.TOO_MANY_REQUESTS,
            "another target is being added",
            means="nothing was done",
            do="try again in some seconds",
            headers={"Retry-After": "2"},
        )
    try:
        yield
    finally:
        _examination.release()


def _describe(target: StoredTarget) -> str:
    place = f" at {target.host}" if target.host else ""
    return f"{target.service}{place}, on {', '.join(occasion.name for occasion in target.on)}"


def _render(target: StoredTarget, waiting: int) -> NotificationTarget:
    values = {
        name: getattr(target, name)
        for name in NotificationTarget.__struct_fields__
        if name not in ("on", "waiting")
    }
    return NotificationTarget(**values, on=tuple(occasion.name for occasion in target.on), waiting=waiting)


def _render_notification(entry: StoredNotification) -> Notification:
    return Notification(
        id=entry.id,
        key=entry.message.key,
        on=entry.message.on,
        job=entry.message.job,
        state=entry.state,
        made_s=entry.made_s,
        ended_s=entry.ended_s,
    )
