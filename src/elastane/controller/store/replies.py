"""The first answer to each idempotency key, so that a repeated request is done once."""

import msgspec
from sqlalchemy import Connection, delete, insert, select

from elastane.controller.store.tables import replies

KEPT_S = 7 * 24 * 3600.0
"""How long a key is remembered."""


class Reply(msgspec.Struct, frozen=True, kw_only=True):
    """An answer: HTTP status, JSON, and the version of what it shows.

    Args:
        status: of HTTP.
        body: JSON.
        etag: empty: none.
    """

    status: int = 200
    body: bytes = b""
    etag: str = ""


class Kept(msgspec.Struct, frozen=True):
    """An answer, and the SHA-256 of the request it was given to."""

    digest: bytes
    reply: Reply


def find(tx: Connection, token: str, key: str) -> Kept | None:
    row = tx.execute(select(replies).where(replies.c.token == token, replies.c.key == key)).one_or_none()
    if row is None:
        return None
    return Kept(bytes(row.digest), Reply(status=row.status, body=bytes(row.body), etag=row.etag))


def keep(tx: Connection, token: str, key: str, digest: bytes, reply: Reply, *, now_s: float) -> None:
    """Remembers an answer, and forgets those that are older than a week."""
    tx.execute(delete(replies).where(replies.c.time_s < now_s - KEPT_S))
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
