"""What operators declare, as documents by kind and name."""

from collections.abc import Iterable

import msgspec
from sqlalchemy import Connection, delete, insert, select, update

from elastane.api.wire import Change, Config
from elastane.controller.declared import KINDS, Kind, config_of
from elastane.controller.store.database import changed
from elastane.controller.store.rows import text_of
from elastane.controller.store.tables import documents


class Versioned(msgspec.Struct, frozen=True):
    """A document and how often it has been written. After a removal the count goes on from 1."""

    value: msgspec.Struct
    version: int


def find(tx: Connection, kind: Kind, name: str) -> Versioned | None:
    query = select(documents).where(documents.c.kind == kind, documents.c.name == name)
    row = tx.execute(query).one_or_none()
    return Versioned(msgspec.json.decode(row.body, type=KINDS[kind]), row.version) if row else None


def config(tx: Connection) -> Config:
    """All of them."""
    rows = tx.execute(select(documents.c.kind, documents.c.body).order_by(documents.c.kind, documents.c.name))
    return config_of((row.kind, msgspec.json.decode(row.body, type=KINDS[row.kind])) for row in rows)


def write(tx: Connection, changes: Iterable[Change], now_s: float) -> None:
    """Makes these changes; those to documents that are as they should be do no harm."""
    some = False
    for one in changes:
        some = True
        here = (documents.c.kind == one.kind) & (documents.c.name == one.name)
        if one.after is None:
            tx.execute(delete(documents).where(here))
            continue
        body = text_of(one.after)
        written = tx.execute(
            update(documents).where(here).values(body=body, version=documents.c.version + 1, changed_s=now_s)
        )
        if not written.rowcount:
            tx.execute(
                insert(documents).values(kind=one.kind, name=one.name, version=1, body=body, changed_s=now_s)
            )
    if some:
        changed(tx)
