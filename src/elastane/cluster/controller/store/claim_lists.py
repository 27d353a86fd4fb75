"""The claim lists that runs keep in the store: their owners, sizes and last uses, and one row per held slot.

`elastane.run.machines.claims` describes claim lists.
"""

import msgspec
from sqlalchemy import Connection, case, delete, func, insert, select, update

from elastane.cluster.controller.store.tables import claim_lists, claims
from elastane.run.machines.claims.place import Content
from elastane.run.machines.claims.records import LARGEST_RECORD_BYTES, Unreadable

KEPT_S = 90 * 24 * 3600.0
"""A list is deleted this long after its last use. Coordinators read their list every second."""
AT_ONCE = 100


class StoredClaimList(msgspec.Struct, frozen=True, kw_only=True):
    """A claim list of a run.

    Args:
        run: its key: team, slash, name. No name of a job has a slash.
        user: that began it.
        content_bytes: of all slots.
        used_s: about when it was last read or claimed in, in seconds since 1970.
    """

    run: str
    team: str
    user: str
    content_bytes: int
    used_s: float


def find_claim_list(tx: Connection, run: str) -> StoredClaimList | None:
    row = tx.execute(select(claim_lists).where(claim_lists.c.run == run)).one_or_none()
    return None if row is None else StoredClaimList(**row._mapping)


def list_claim_lists(
    tx: Connection, teams: tuple[str, ...] | None, *, after: str, limit: int
) -> tuple[StoredClaimList, ...]:
    """Return claim lists of teams (None: of all) in the order of their keys, after a key."""
    query = select(claim_lists).where(claim_lists.c.run > after).order_by(claim_lists.c.run).limit(limit)
    if teams is not None:
        query = query.where(claim_lists.c.team.in_(teams))
    rows = tx.execute(query)
    return tuple(StoredClaimList(**row._mapping) for row in rows)


def insert_claim_list(tx: Connection, made: StoredClaimList) -> None:
    tx.execute(insert(claim_lists).values(msgspec.structs.asdict(made)))


def record_use(tx: Connection, run: str, now_s: float, added_bytes: int = 0) -> None:
    """Record that a list was used now, and how many bytes were added."""
    grown = claim_lists.c.content_bytes + added_bytes
    tx.execute(update(claim_lists).where(claim_lists.c.run == run).values(used_s=now_s, content_bytes=grown))


def measure_lists(tx: Connection, team: str) -> int:
    """Return the bytes of all claim lists of a team."""
    total = func.coalesce(func.sum(claim_lists.c.content_bytes), 0)
    return int(tx.execute(select(total).where(claim_lists.c.team == team)).scalar_one())


def forget_claim_list(tx: Connection, run: str) -> None:
    delete_slots(tx, run)
    tx.execute(delete(claim_lists).where(claim_lists.c.run == run))


def list_unused_lists(tx: Connection, now_s: float) -> tuple[str, ...]:
    """Return some of the lists that were not used for `KEPT_S`."""
    query = select(claim_lists.c.run).where(claim_lists.c.used_s < now_s - KEPT_S)
    return tuple(tx.execute(query.order_by(claim_lists.c.used_s).limit(AT_ONCE)).scalars())


def insert_claim(tx: Connection, run: str, slot: int, content: bytes) -> bool:
    """Write the content of a slot, unless it has one; return whether it was written.

    Writing transactions run one after the other, so two claimants cannot both find the slot free.
    """
    if has_claim(tx, run, slot):
        return False
    tx.execute(insert(claims).values(run=run, slot=slot, content=content))
    return True


def has_claim(tx: Connection, run: str, slot: int) -> bool:
    return bool(tx.execute(select(claims.c.slot).where(claims.c.run == run, claims.c.slot == slot)).first())


def list_claims(tx: Connection, run: str, first_slot: int, limit: int | None = None) -> tuple[Content, ...]:
    """Return the contents of at most ``limit`` slots from ``first_slot`` on, up to the first gap."""
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
