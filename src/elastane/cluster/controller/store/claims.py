"""Claim lists in the store: one row per held slot; see `elastane.run.machines.claims`."""

from sqlalchemy import Connection, case, delete, func, insert, select

from elastane.cluster.controller.store.tables import claims
from elastane.run.machines.claims.place import Content
from elastane.run.machines.claims.records import LARGEST_RECORD_BYTES, Unreadable


def insert_claim(tx: Connection, run: str, slot: int, content: bytes) -> bool:
    """Write the content of a slot, unless it has one; return whether it was written.

    Writing transactions run one after the other, so two claimants cannot both find the slot free.
    """
    if has_claim(tx, run, slot):
        return False
    tx.execute(insert(claims).values(run=run, slot=slot, content=content))
    return True


def has_claim(tx: Connection, run: str, slot: int) -> bool:
    """Return whether a slot is held."""
    return bool(tx.execute(select(claims.c.slot).where(claims.c.run == run, claims.c.slot == slot)).first())


def list_claims(tx: Connection, run: str, first_slot: int, limit: int | None = None) -> tuple[Content, ...]:
    """Return the contents of slots from ``first_slot`` on, up to the first slot without a content.

    Args:
        tx: a transaction.
        run: name of the list.
        first_slot: the first slot to return.
        limit: the most slots to return; None: all.
    """
    length = func.length(claims.c.content)
    # A content that is too long is not read.
    content = case((length <= LARGEST_RECORD_BYTES, claims.c.content))
    query = select(claims.c.slot, length, content).where(claims.c.run == run, claims.c.slot >= first_slot)
    found: list[Content] = []
    for row in tx.execute(query.order_by(claims.c.slot).limit(limit)):
        slot, length_bytes, value = row
        if slot != first_slot + len(found):
            break
        found.append(_check_content(length_bytes, value))
    return tuple(found)


def _check_content(length_bytes: object, value: object) -> Content:
    if isinstance(length_bytes, int) and length_bytes > LARGEST_RECORD_BYTES:
        return Unreadable(f"it has more than {LARGEST_RECORD_BYTES} bytes")
    # SQLite keeps values of any type in any column.
    if not isinstance(value, bytes | memoryview):
        return Unreadable("its content is not of the type that was written")
    return bytes(value)


def delete_slots(tx: Connection, run: str) -> None:
    """Delete the contents of a list."""
    tx.execute(delete(claims).where(claims.c.run == run))
