"""The notifier: makes messages of events and jobs, and has processes send them.

It has a thread of its own. All that it must know is in the store and in the receipts, so it may end between
any two steps. A message is marked as being sent before a process sends it, and as sent after the process has
written its receipt: see `elastane.cluster.controller.notifications.receipts`.
"""

import contextlib
import logging
import os
import secrets
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import msgspec

from elastane.cluster.controller.access.roles import EVERY_TEAM
from elastane.cluster.controller.clock import has_elapsed
from elastane.cluster.controller.notifications.deliveries import (
    MessageBatch,
    Outcome,
    apply_outcome,
    choose_batches,
    record_result,
)
from elastane.cluster.controller.notifications.occasions import (
    list_event_messages,
    list_job_messages,
    list_wait_messages,
)
from elastane.cluster.controller.notifications.receipts import (
    NO_TRACE,
    make_receipt,
    read_receipt,
    remove_other_receipts,
    remove_receipt,
)
from elastane.cluster.controller.notifications.sender import LONGEST_S, SendMessage
from elastane.cluster.controller.notifications.stored_target import Message, StoredTarget
from elastane.cluster.controller.notifications.wording import write_body, write_title
from elastane.cluster.controller.store import history, notification_rows
from elastane.cluster.controller.store.database import Store
from elastane.cluster.controller.store.failures import StoreError
from elastane.common.errors import ElastaneError

LOOK_S = 1.0
AFTER_FAILURE_S = 5.0
JUDGE_S = 15.0
"""Jobs are judged this often; it costs a query of all that have begun."""
CLEAN_S = 600.0
EVENTS_AT_ONCE = 500
KILL_S = LONGEST_S + 10.0
"""A process that has not ended by itself after this time is killed."""
FAREWELL_S = 1.0
SENDER = ("-P", "-m", "elastane.cluster.controller.notifications.sender")

logger = logging.getLogger(__name__)


class Notifier:
    """Makes and sends the messages of all targets.

    Args:
        home: directory of the controller.
        clock: seconds since 1970.
    """

    def __init__(self, store: Store, home: Path, clock: Callable[[], float] = time.time) -> None:
        self._store = store
        self._home = home
        self._clock = clock
        self._closing = threading.Event()
        self._senders: dict[str, tuple[subprocess.Popen[bytes], float]] = {}
        self._judged_s = self._cleaned_s = float("-inf")
        self._failing = ""

    def close(self) -> None:
        """End after this look, from another thread. Messages that are being sent are sent."""
        self._closing.set()

    def run(self) -> None:
        """Look until it is closed. A look that fails is logged, and the next one tries again."""
        while not self._closing.is_set():
            pause_s = LOOK_S
            try:
                self.look()
                self._record_failure("")
            except StoreError:
                # The monitor of the store reports it.
                pause_s = AFTER_FAILURE_S
            except Exception as error:  # noqa: BLE001 - the disk may be full
                known = isinstance(error, ElastaneError)
                self._record_failure(str(error) if known else f"{type(error).__name__}: {error}")
                pause_s = AFTER_FAILURE_S
            self._closing.wait(pause_s)
        until_s = time.monotonic() + FAREWELL_S
        for process, _ in self._senders.values():
            # It writes its receipt without us, for the next controller.
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(max(0.0, until_s - time.monotonic()))

    def _record_failure(self, why: str) -> None:
        if why and why != self._failing:
            logger.error("no messages are made or sent, which is tried again: %s", why)
        elif self._failing and not why:
            logger.info("messages are made and sent again")
        self._failing = why

    def look(self) -> None:
        """Make the messages that are due, store what was sent, and begin to send others."""
        now_s = self._clock()
        with self._store.begin_read() as tx:
            targets = notification_rows.list_targets(tx)
            batches = notification_rows.list_batches(tx)
        if not targets and not batches and not self._senders:
            return
        self._make_messages(targets, now_s)
        self._collect(now_s)
        self._begin(now_s)
        if has_elapsed(self._cleaned_s, CLEAN_S, now_s):
            with self._store.begin_write() as tx:
                notification_rows.forget_old_notifications(tx)
                batches = notification_rows.list_batches(tx)
            remove_other_receipts(self._home, batches.keys() | self._senders.keys())
            self._cleaned_s = now_s

    # -- making ------------------------------------------------------------------------------------------

    def _make_messages(self, targets: tuple[StoredTarget, ...], now_s: float) -> None:
        """Store the messages of new events, and of jobs if it is time to judge them."""
        if not targets:
            return
        is_time = has_elapsed(self._judged_s, JUDGE_S, now_s)
        first = min(target.last_event for target in targets)
        with self._store.begin_read() as tx:
            events = history.list_events_after(tx, first, EVENTS_AT_ONCE)
            last = events[-1].id if events else first
            made: dict[str, list[Message]] = {
                one.id: list(list_event_messages(one, events)) for one in targets
            }
            if is_time:
                begun = notification_rows.list_begun_jobs(tx, _list_teams(targets, "stuck", "budget"))
                since_s = now_s - min(_list_wait_limits(targets), default=float("inf"))
                waiting = tuple(
                    notification_rows.list_waiting_jobs(tx, _list_teams(targets, "waits"), since_s)
                )
                for one in targets:
                    found = [*list_job_messages(one, begun, now_s), *list_wait_messages(one, waiting, now_s)]
                    # A job that waits has the same message in every look.
                    made[one.id] += notification_rows.choose_new(tx, one.id, found)
        # Events without a message are read again for a while, which costs less than to store their number.
        if any(made.values()) or (events and (is_time or len(events) >= EVENTS_AT_ONCE // 2)):
            with self._store.begin_write() as tx:
                for before in targets:
                    # It may have been removed, or changed by an attempt.
                    target = notification_rows.find_target(tx, before.id)
                    if target is not None and target.last_event == before.last_event:
                        after = notification_rows.add_messages(tx, target, made[target.id], now_s)
                        seen = msgspec.structs.replace(after, last_event=max(last, target.last_event))
                        notification_rows.write_target(tx, seen)
        if is_time:
            self._judged_s = now_s

    # -- sending -----------------------------------------------------------------------------------------

    def _begin(self, now_s: float) -> None:
        """Begin the attempts that are due."""
        with self._store.begin_read() as tx:
            targets = {target.id: target for target in notification_rows.list_targets(tx)}
            waiting = notification_rows.map_waiting(tx)
            busy = set(notification_rows.list_batches(tx).values())
        busy_targets = [target for target in targets.values() if target.id in busy]
        for batch in choose_batches(targets.values(), waiting, busy_targets, now_s):
            self._begin_batch(batch)

    def _begin_batch(self, batch: MessageBatch) -> None:
        name = f"batch-{secrets.token_hex(8)}"
        receipt = make_receipt(self._home, name)
        try:
            with self._store.begin_write() as tx:
                if notification_rows.find_target(tx, batch.target.id) is None:
                    # It was removed a moment ago.
                    remove_receipt(self._home, name)
                    return
                for entry in batch.messages:
                    sending = msgspec.structs.replace(entry, state="sending", batch=name)
                    notification_rows.write_notification(tx, sending)
            order = SendMessage(
                home=str(self._home),
                sealed=batch.target.sealed,
                title=write_title(batch.messages),
                body=write_body(batch.messages, batch.target.left_out),
                receipt=receipt,
                longest_s=LONGEST_S,
                left_out=batch.target.left_out,
            )
            self._senders[name] = (start_sender(order), time.monotonic())
        finally:
            # The process has inherited it, and with it the lock.
            os.close(receipt)

    def _collect(self, now_s: float) -> None:
        """Store the outcomes of the attempts that have ended, also of an earlier controller."""
        with self._store.begin_read() as tx:
            batches = notification_rows.list_batches(tx)
        for name, (process, begun_s) in list(self._senders.items()):
            if process.poll() is None and time.monotonic() - begun_s > KILL_S:
                process.kill()
                process.wait()
            if process.poll() is not None and name not in batches:
                # Its target was removed.
                self._forget(name)
        for name, target in batches.items():
            if (outcome := self._find_outcome(name)) is not None:
                self._record(name, target, outcome, now_s)
                self._forget(name)

    def _find_outcome(self, name: str) -> Outcome | None:
        """Return the outcome of an attempt; None: it still runs."""
        if name in self._senders and self._senders[name][0].poll() is None:
            return None
        try:
            found = read_receipt(self._home, name)
        except BlockingIOError:
            return None
        except FileNotFoundError:
            # It belongs to a controller with another home, or the file was removed.
            return Outcome(result="unknown", why=NO_TRACE)
        if found is None:
            return Outcome(result="failed", why="the process that sends it has ended before it began")
        return found

    def _record(self, name: str, target_id: str, outcome: Outcome, now_s: float) -> None:
        with self._store.begin_write() as tx:
            for entry in notification_rows.list_notifications(tx, batch=name, limit=1000):
                notification_rows.write_notification(tx, record_result(entry, outcome, now_s))
            target = notification_rows.find_target(tx, target_id)
            if target is not None:
                notification_rows.write_target(tx, apply_outcome(target, outcome, now_s))
        if outcome.result == "failed":
            logger.info("a message to %s was not sent, which is tried again: %s", target_id, outcome.why)

    def _forget(self, name: str) -> None:
        self._senders.pop(name, None)
        remove_receipt(self._home, name)


def start_sender(order: SendMessage) -> "subprocess.Popen[bytes]":
    process = subprocess.Popen(
        [sys.executable, *SENDER],
        stdin=subprocess.PIPE,
        # apprise prints parts of URLs.
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        pass_fds=(order.receipt,),
        # The process outlives the controller.
        start_new_session=True,
    )
    assert process.stdin is not None, "it is a pipe"
    # If the process has ended already, its receipt is empty.
    with contextlib.suppress(OSError), process.stdin as pipe:
        pipe.write(msgspec.json.encode(order))
    return process


def _list_wait_limits(targets: tuple[StoredTarget, ...]) -> list[float]:
    return [occasion.limit for target in targets for occasion in target.on if occasion.kind == "waits"]


def _list_teams(targets: tuple[StoredTarget, ...], *kinds: str) -> set[str] | None:
    """Return the teams with jobs that must be judged; None: all."""
    teams = {target.team for target in targets if any(occasion.kind in kinds for occasion in target.on)}
    return None if EVERY_TEAM in teams else teams
