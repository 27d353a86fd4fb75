"""Who did what, or was not allowed to."""

from typing import Any

from sqlalchemy import Connection, Row, insert, select

from elastane.api.history import AuditLine
from elastane.api.safe_text import LONGEST, make_storable
from elastane.controller.store.slices import Slice
from elastane.controller.store.tables import audit

LONGEST_NAME = 300
"""Characters of a user, a target or a team. Names are shorter: this holds whatever a caller forgets."""


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
    longest: int = LONGEST,
) -> None:
    """One more line, in the transaction of what it tells of.

    Args:
        tx: a transaction that writes.
        token: id of the token that asked.
        user: whom it speaks for.
        action: what was asked for.
        target: with what.
        team: it belongs to; empty: to the cluster.
        allowed: it was done.
        detail: what was changed, or why it was refused.
        now_s: the time.
        times: so many refusals are told by this line.
        longest: characters of the detail that are kept.
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
    """Newest first; None: of all teams, and those of none too, if not asked otherwise."""
    query = select(audit).order_by(audit.c.id.desc()).limit(limit + 1)
    if teams is not None:
        query = query.where(audit.c.team.in_(teams))
    elif not of_none:
        query = query.where(audit.c.team != "")
    if before is not None:
        query = query.where(audit.c.id < before)
    found = [_line(row) for row in tx.execute(query)]
    items = tuple(found[:limit])
    return Slice(items=items, after=str(items[-1].id) if len(found) > limit else "")


def _line(row: Row[Any]) -> AuditLine:
    columns = {name: getattr(row, name) for name in AuditLine.__struct_fields__}
    return AuditLine(**columns | {"allowed": bool(row.allowed)})
