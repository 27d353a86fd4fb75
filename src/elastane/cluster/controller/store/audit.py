"""The lines of the audit log: changes, and refusals."""

from typing import Any

from sqlalchemy import Connection, Row, insert, select

from elastane.cluster.controller.store.slices import Slice
from elastane.cluster.controller.store.tables import audit
from elastane.cluster.nouns.history import AuditLine
from elastane.common.safe_text import LONGEST_TEXT, make_storable

LONGEST_NAME = 300
"""Limit in characters of a user, a target or a team. Names are shorter; this bounds unchecked ones too."""


def append_audit_line(
    tx: Connection,
    *,
    token: str,
    user: str,
    action: str,
    target: str,
    team: str,
    allowed: bool,
    detail: str,
    now_s: float,
    times: int = 1,
    longest: int = LONGEST_TEXT,
) -> None:
    """Append a line, in the transaction of the change that it describes.

    Args:
        tx: a transaction that writes.
        token: id of the token.
        user: of the token.
        action: requested action.
        target: of the action.
        team: owner of the line; empty: the cluster.
        allowed: the action was done.
        detail: of the change, or the reason of the refusal.
        now_s: the time.
        times: number of refusals that this line covers.
        longest: characters of the detail to keep.
    """
    tx.execute(
        insert(audit).values(
            time_s=now_s,
            token=token,
            user=make_storable(user, LONGEST_NAME),
            action=action,
            target=make_storable(target, LONGEST_NAME),
            team=make_storable(team, LONGEST_NAME),
            allowed=int(allowed),
            detail=make_storable(detail, longest),
            times=times,
        )
    )


def list_audit_page(
    tx: Connection, *, teams: tuple[str, ...] | None, of_none: bool = True, before: int | None, limit: int
) -> Slice[AuditLine]:
    """Return lines of the audit log, newest first.

    Args:
        tx: a transaction.
        teams: only lines of these teams; None: of all.
        of_none: with ``teams`` None, also lines of no team.
        before: only lines with a smaller id; None: begin with the newest.
        limit: of the slice.
    """
    query = select(audit).order_by(audit.c.id.desc()).limit(limit + 1)
    if teams is not None:
        query = query.where(audit.c.team.in_(teams))
    elif not of_none:
        query = query.where(audit.c.team != "")
    if before is not None:
        query = query.where(audit.c.id < before)
    found = [_decode_line(row) for row in tx.execute(query)]
    items = tuple(found[:limit])
    return Slice(items=items, after=str(items[-1].id) if len(found) > limit else "")


def _decode_line(row: Row[Any]) -> AuditLine:
    columns = {name: getattr(row, name) for name in AuditLine.__struct_fields__}
    return AuditLine(**columns | {"allowed": bool(row.allowed)})
