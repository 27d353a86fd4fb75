"""The first answer to each idempotency key, so that a repeated request takes effect once."""

import msgspec
from sqlalchemy import Connection, delete, func, insert, select

from elastane.cluster.controller.store.tables import replies

KEPT_S = 7 * 24 * 3600.0
"""How long a key is kept, unless its token has used too many since."""
MOST_KEYS, MOST_BYTES = 2000, 32 * 2**20
"""Limits of one token. Beyond them, the older half of its keys goes: repetitions come within seconds."""


class Reply(msgspec.Struct, frozen=True, kw_only=True):
    """An answer to a request; ``etag`` is the version of its body, if it has one."""

    status: int = 200
    body: bytes = b""
    etag: str = ""


class Kept(msgspec.Struct, frozen=True):
    """A stored answer, and the SHA-256 of its request."""

    digest: bytes
    reply: Reply


def find_reply(tx: Connection, token: str, key: str) -> Kept | None:
    row = tx.execute(select(replies).where(replies.c.token == token, replies.c.key == key)).one_or_none()
    if row is None:
        return None
    return Kept(bytes(row.digest), Reply(status=row.status, body=bytes(row.body), etag=row.etag))


def keep_reply(tx: Connection, token: str, key: str, digest: bytes, reply: Reply, *, now_s: float) -> None:
    """Store an answer. Delete those older than a week, and the older ones of a token with too many."""
    tx.execute(delete(replies).where(replies.c.time_s < now_s - KEPT_S))
    _make_room(tx, token)
    tx.execute(
        insert(replies).values(
            token=token,
            key=key,
            digest=digest,
            status=reply.status,
            etag=reply.etag,
            body=reply.body,
            time_s=now_s,
        )
    )


def _make_room(tx: Connection, token: str) -> None:
    """Delete the older half of a token's keys, if there are too many or their answers are too long."""
    here = replies.c.token == token
    length = func.coalesce(func.sum(func.length(replies.c.body)), 0)
    keys, length_bytes = tx.execute(select(func.count(), length).where(here)).one()
    if keys < MOST_KEYS and length_bytes < MOST_BYTES:
        return
    newest_first = select(replies.c.time_s).where(here).order_by(replies.c.time_s.desc())
    middle_s = tx.execute(newest_first.offset(keys // 2).limit(1)).scalar_one()
    tx.execute(delete(replies).where(here, replies.c.time_s <= middle_s))
