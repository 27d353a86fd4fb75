"""The code that teams have sent for their jobs: its sender, its size, and its last use.

Each team has rows of its own: a team may use only code that it has sent itself. The archive of some code
exists once, in the home of the controller.
"""

from collections.abc import Container

from sqlalchemy import ColumnElement, Connection, delete, exists, func, insert, or_, select, update

from elastane.cluster.controller.store.tables import code, jobs

KEPT_S = 7 * 24 * 3600.0
"""Code is deleted this long after it was sent, or after the end of the last job that used it."""
AT_ONCE = 100


def has_code(tx: Connection, team: str, digest: str) -> bool:
    """Return whether a team has sent this code, and it was not deleted since."""
    return bool(tx.execute(select(code.c.digest).where(_is_of(team, digest))).first())


def record_code(tx: Connection, team: str, digest: str, user: str, archive_bytes: int, now_s: float) -> None:
    """Record that a team has sent some code, perhaps once more."""
    if has_code(tx, team, digest):
        record_code_use(tx, team, digest, now_s)
        return
    made = {"team": team, "digest": digest, "user": user, "archive_bytes": archive_bytes, "used_s": now_s}
    tx.execute(insert(code).values(made))


def record_code_use(tx: Connection, team: str, digest: str, used_s: float) -> None:
    """Record that the code was used at a time, unless it was used later."""
    here = (_is_of(team, digest), code.c.used_s < used_s)
    tx.execute(update(code).where(*here).values(used_s=used_s))


def measure_code(tx: Connection, team: str) -> int:
    """Return the bytes of the archives of all code of a team."""
    total = func.coalesce(func.sum(code.c.archive_bytes), 0)
    return int(tx.execute(select(total).where(code.c.team == team)).scalar_one())


def list_unneeded_code(tx: Connection, now_s: float) -> tuple[tuple[str, str], ...]:
    """Return team and digest of some code that no job needs, and that has not been used for `KEPT_S`."""
    since_s = now_s - KEPT_S
    needs_it = exists().where(
        jobs.c.code == code.c.digest,
        jobs.c.team == code.c.team,
        or_(jobs.c.ended_s.is_(None), jobs.c.ended_s >= since_s),
    )
    query = select(code.c.team, code.c.digest).where(code.c.used_s < since_s, ~needs_it)
    rows = tx.execute(query.order_by(code.c.used_s).limit(AT_ONCE))
    return tuple((row.team, row.digest) for row in rows)


def forget_code(tx: Connection, team: str, digest: str) -> bool:
    """Delete the row of some code; return whether no team needs its archive any more."""
    tx.execute(delete(code).where(_is_of(team, digest)))
    return not tx.execute(select(code.c.digest).where(code.c.digest == digest)).first()


def list_digests(tx: Connection) -> Container[str]:
    return frozenset(tx.execute(select(code.c.digest)).scalars())


def _is_of(team: str, digest: str) -> ColumnElement[bool]:
    return (code.c.team == team) & (code.c.digest == digest)
