"""Refusals for the audit log: counted for each token, and written when they are due."""

import threading

import msgspec
from sqlalchemy import Connection

from elastane.cluster.controller.access.refusals import (
    Refused,
    Tally,
    count_refusal,
    is_line_due,
    is_window_over,
)
from elastane.cluster.controller.access.roles import Principal
from elastane.cluster.controller.store import history
from elastane.cluster.controller.store.database import Store
from elastane.cluster.controller.store.failures import StoreError
from elastane.cluster.scheduler.wording import format_time

MOST_TALLIES = 10_000
"""Largest number of tallies. Beyond it, the pending refusals of the longest unused tally are written."""


class Refusals:
    """A writer of refusals to the audit log, with a bounded number of lines for each token. Thread-safe.

    Refusals are marked as written before their line is written, so that no two threads write it. If writing
    fails, they are pending again.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        # By token, and whether the refusals were visible. The most recent refusal is last.
        self._tallies: dict[tuple[str, bool], tuple[Principal, Tally]] = {}
        self._lock = threading.Lock()

    def add(self, principal: Principal, refused: Refused, team: str, now_s: float) -> None:
        """Count a refusal, and write it if it is due.

        Raises:
            StoreError: it could not be written; it stays counted.
        """
        self.write_ended(now_s)
        key = principal.token, refused.visible
        with self._lock:
            _, before = self._tallies.pop(key, (principal, None))
            tally = count_refusal(before, refused, now_s)
            due = is_line_due(tally)
            self._tallies[key] = principal, tally.mark_written() if due else tally
        if not due:
            return
        try:
            with self._store.begin_write() as tx:
                _append(tx, principal, tally, team=team, now_s=now_s)
        except StoreError:
            self._restore_pending(principal, tally)
            raise

    def write_ended(self, now_s: float, *, all_of_them: bool = False) -> None:
        """Write the pending refusals of windows that have ended, and drop these windows.

        Args:
            all_of_them: also of windows that have not ended, because the controller ends.

        Raises:
            StoreError: it could not be written; it stays pending.
        """
        with self._lock:
            excess = max(0, len(self._tallies) - MOST_TALLIES)
            ended = [
                key
                for place, (key, (_, tally)) in enumerate(self._tallies.items())
                if all_of_them or place < excess or is_window_over(tally, now_s)
            ]
            forgotten = [self._tallies.pop(key) for key in ended]
        pending = [(principal, tally) for principal, tally in forgotten if tally.pending]
        if not pending:
            return
        try:
            with self._store.begin_write() as tx:
                for principal, tally in pending:
                    _append(tx, principal, tally, team=_choose_team(principal, tally), now_s=now_s)
        except StoreError:
            for principal, tally in pending:
                self._restore_pending(principal, tally)
            raise

    def _restore_pending(self, principal: Principal, tally: Tally) -> None:
        """Make unwritten refusals pending again, together with those counted since."""
        key = principal.token, tally.last.visible
        with self._lock:
            _, newer = self._tallies.get(key, (principal, None))
            if newer is not None:
                written = newer.written - tally.pending if newer.since_s == tally.since_s else newer.written
                count = newer.count if newer.since_s == tally.since_s else newer.count + tally.pending
                tally = msgspec.structs.replace(newer, count=count, written=written)
            self._tallies[key] = principal, tally


def _choose_team(principal: Principal, tally: Tally) -> str:
    """Return the team of a line for several requests: that of the token; empty, for operators, if hidden."""
    return principal.team if tally.last.visible else ""


def _append(tx: Connection, principal: Principal, tally: Tally, *, team: str, now_s: float) -> None:
    """Write one line for all pending refusals of a tally; ``team`` owns the target of a single one."""
    last, several = tally.last, tally.pending > 1
    since = format_time(tally.since_s)
    history.append_audit_line(
        tx,
        token=principal.token,
        user=principal.user,
        action=last.action,
        target=last.target,
        team=_choose_team(principal, tally) if several else team,
        allowed=False,
        detail=f"{tally.pending} more requests of this token were refused, {tally.count} since {since}; "
        f"this is the last one: {last.reason}"
        if several
        else last.reason,
        times=tally.pending,
        now_s=now_s,
    )
