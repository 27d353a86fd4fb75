"""Refusals on their way to the audit log: counted for each token, and written when they are due."""

import threading
from datetime import UTC, datetime

import msgspec
from sqlalchemy import Connection

from elastane.controller.access.refusals import Refused, Tally, count_refusal, is_line_due, is_window_over
from elastane.controller.access.roles import Principal
from elastane.controller.store import audit
from elastane.controller.store.database import Store
from elastane.controller.store.failures import StoreError

MOST_TALLIES = 10_000
"""Tokens that are counted at one time; beyond, what is pending of the longest quiet one is written."""


class Refusals:
    """Writes refusals to the audit log, a bounded number of lines for each token. For several threads.

    A line that is about to be written is marked as written first, so that no two threads write it; if that
    fails, its refusals are pending again.

    Args:
        store: that has the audit log.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        # By token and whether the refusals were visible; the one that was refused last comes last.
        self._tallies: dict[tuple[str, bool], tuple[Principal, Tally]] = {}
        self._lock = threading.Lock()

    def add(self, principal: Principal, refused: Refused, team: str, now_s: float) -> None:
        """Counts a refusal, and writes it if it is due.

        Args:
            principal: who was refused.
            refused: what.
            team: of what was asked for.
            now_s: the time.

        Raises:
            StoreError: it could not be written; it stays counted.
        """
        self.write_ended(now_s)
        key = principal.token, refused.visible
        with self._lock:
            _, before = self._tallies.pop(key, (principal, None))
            tally = count_refusal(before, refused, now_s)
            due = is_line_due(tally)
            self._tallies[key] = principal, tally.all_written() if due else tally
        if not due:
            return
        try:
            with self._store.writing() as tx:
                _append(tx, principal, tally, team=team, now_s=now_s)
        except StoreError:
            self._give_back(principal, tally)
            raise

    def write_ended(self, now_s: float, *, all_of_them: bool = False) -> None:
        """Writes what is pending of windows that have ended, and forgets those windows.

        Args:
            now_s: the time.
            all_of_them: also of windows that go on, because the controller ends.

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
            with self._store.writing() as tx:
                for principal, tally in pending:
                    _append(tx, principal, tally, team=_team_of_sum(principal, tally), now_s=now_s)
        except StoreError:
            for principal, tally in pending:
                self._give_back(principal, tally)
            raise

    def _give_back(self, principal: Principal, tally: Tally) -> None:
        """What could not be written is pending again, beside what has been counted meanwhile."""
        key = principal.token, tally.last.visible
        with self._lock:
            _, newer = self._tallies.get(key, (principal, None))
            if newer is not None:
                written = newer.written - tally.pending if newer.since_s == tally.since_s else newer.written
                count = newer.count if newer.since_s == tally.since_s else newer.count + tally.pending
                tally = msgspec.structs.replace(newer, count=count, written=written)
            self._tallies[key] = principal, tally


def _team_of_sum(principal: Principal, tally: Tally) -> str:
    """Who sees a line for several requests: the token's team; of what it may not see, operators alone."""
    return principal.team if tally.last.visible else ""


def _append(tx: Connection, principal: Principal, tally: Tally, *, team: str, now_s: float) -> None:
    """Writes one line for all that are pending.

    Args:
        tx: a transaction that writes.
        principal: who was refused.
        tally: with something pending.
        team: of what was asked for, if it is one request.
        now_s: the time.
    """
    last, several = tally.last, tally.pending > 1
    since = f"{datetime.fromtimestamp(tally.since_s, UTC):%Y-%m-%d %H:%M:%S} UTC"
    audit.append_audit_line(
        tx,
        token=principal.token,
        user=principal.user,
        action=last.action,
        target=last.target,
        team=_team_of_sum(principal, tally) if several else team,
        allowed=False,
        detail=f"{tally.pending} more requests of this token were refused, {tally.count} since {since}; "
        f"this is the last one: {last.reason}"
        if several
        else last.reason,
        times=tally.pending,
        now_s=now_s,
    )
