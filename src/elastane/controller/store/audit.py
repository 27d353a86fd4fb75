"""Who did what, or was not allowed to."""

from typing import Any

from sqlalchemy import Connection, Row, insert, select

from elastane.api.wire import AuditLine, Page
from elastane.controller.store.tables import audit


def append(
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
) -> None:
    """One more line, in the transaction of what it tells of."""
    tx.execute(
        insert(audit).values(
            time_s=now_s,
            token=token,
            user=user,
            action=action,
            target=target,
            team=team,
            allowed=int(allowed),
            detail=detail,
        )
    )


def page(
    tx: Connection, *, teams: tuple[str, ...] | None, of_none: bool = True, before: int | None, limit: int
) -> Page[AuditLine]:
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
    return Page(items=items, after=str(items[-1].id) if len(found) > limit else "")


def _line(row: Row[Any]) -> AuditLine:
    columns = {name: getattr(row, name) for name in AuditLine.__struct_fields__}
    return AuditLine(**columns | {"allowed": bool(row.allowed)})
