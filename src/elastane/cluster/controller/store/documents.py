"""The declarations of operators, as documents by kind and name."""

from collections.abc import Iterable
from functools import lru_cache
from typing import Any

import msgspec
from sqlalchemy import Connection, delete, insert, select, update

from elastane.cluster.controller.cluster.declarations import (
    KINDS,
    Document,
    Kind,
    build_config,
    check_config,
    get_name,
    map_documents,
)
from elastane.cluster.controller.store.columns import JsonColumn, encode_json
from elastane.cluster.controller.store.database import count_change
from elastane.cluster.controller.store.failures import UnreadableRecord
from elastane.cluster.controller.store.tables import documents
from elastane.cluster.nouns.config import Change, Config
from elastane.common.errors import BadInput
from elastane.common.safe_text import escape_line
from elastane.common.untrusted_data import Malformed

SHOWN = 100


_columns: dict[Kind, JsonColumn[Document]] = {kind: JsonColumn(shape) for kind, shape in KINDS.items()}


class Versioned(msgspec.Struct, frozen=True):
    """A document and its version.

    Args:
        value: the document; None: it cannot be read.
        version: how often it was written. After a removal the count begins again.
        why: it cannot be read; empty: it can.
    """

    value: Document | None
    version: int
    why: str = ""


class UnreadableDocument(msgspec.Struct, frozen=True):
    """A stored document that cannot be read, and why."""

    kind: str
    name: str
    why: str


def find_document(tx: Connection, kind: Kind, name: str) -> Versioned | None:
    query = select(documents).where(documents.c.kind == kind, documents.c.name == name)
    row = tx.execute(query).one_or_none()
    if row is None:
        return None
    try:
        return Versioned(_decode_document(row.kind, row.name, row.body), row.version)
    except Malformed as error:
        return Versioned(None, row.version, str(error))


def require_document(found: Versioned, kind: str, name: str) -> Document:
    if found.value is None:
        raise _make_unreadable_error(UnreadableDocument(kind, name, found.why))
    return found.value


def read_declared_config(tx: Connection) -> Config:
    """Return all documents.

    Raises:
        UnreadableRecord: one cannot be read. Without it, jobs could get more than they may have.
    """
    found, lost = read_declared_documents(tx)
    if lost:
        raise _make_unreadable_error(lost[0])
    return found


def _make_unreadable_error(document: UnreadableDocument) -> UnreadableRecord:
    return UnreadableRecord(
        escape_line(
            f"{document.name} in the declared {document.kind}" if document.name else "the declarations", SHOWN
        ),
        document.why,
        do="declare it again (elastane config apply FILE), or restore a backup of the store",
    )


def list_removals(lost: Iterable[UnreadableDocument], wanted: Config) -> tuple[Change, ...]:
    """Return the removals of unreadable documents that ``wanted`` lacks, of the kinds that it mentions."""
    kept = map_documents(wanted)
    return tuple(
        Change(kind=document.kind, name=document.name, change="remove")
        for document in lost
        if (document.kind, document.name) not in kept
        and (document.kind not in KINDS or getattr(wanted, document.kind) is not None)
        and document != _describe_whole(document.why)
    )


def read_declared_documents(tx: Connection) -> tuple[Config, tuple[UnreadableDocument, ...]]:
    """Return the documents that can be read, and those that cannot. Callers that replace them need both."""
    rows = tx.execute(select(*_COLUMNS).order_by(documents.c.kind, documents.c.name))
    return _decode_documents(tuple(tuple(row) for row in rows))


_COLUMNS = (documents.c.kind, documents.c.name, documents.c.body)


@lru_cache(maxsize=8)
def _decode_documents(rows: tuple[tuple[Any, ...], ...]) -> tuple[Config, tuple[UnreadableDocument, ...]]:
    found: list[tuple[Kind, Document]] = []
    lost: list[UnreadableDocument] = []
    for kind, name, body in rows:
        try:
            found.append((kind, _decode_document(kind, name, body)))
        except Malformed as error:
            lost.append(UnreadableDocument(str(kind), str(name), str(error)))
    whole = build_config(found)
    if not lost:
        try:
            # Every writer checks this, so an inconsistent configuration was not written as it is.
            check_config(whole)
        except BadInput as error:
            lost.append(_describe_whole(error.what))
    return whole, tuple(lost)


def _describe_whole(why: str) -> UnreadableDocument:
    """Return the record for documents that can be read, but are not consistent with each other."""
    return UnreadableDocument("documents", "", why)


def _decode_document(kind: Any, name: Any, body: Any) -> Document:
    if kind not in _columns:
        raise Malformed("there are no documents of that kind")
    document = _columns[kind](body)
    if get_name(document) != name:
        raise Malformed("it belongs to another document")
    return document


def write_documents(tx: Connection, changes: Iterable[Change], now_s: float) -> None:
    """Write these changes. A change that is already there does no harm."""
    some = False
    for change in changes:
        some = True
        here = (documents.c.kind == change.kind) & (documents.c.name == change.name)
        if change.after is None:
            tx.execute(delete(documents).where(here))
            continue
        body = encode_json(change.after)
        written = tx.execute(
            update(documents).where(here).values(body=body, version=documents.c.version + 1, changed_s=now_s)
        )
        if not written.rowcount:
            tx.execute(
                insert(documents).values(
                    kind=change.kind, name=change.name, version=1, body=body, changed_s=now_s
                )
            )
    if some:
        count_change(tx)
