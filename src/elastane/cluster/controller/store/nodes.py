"""Nodes: observed by engines; drained or failed by people and by notices."""

from typing import Any

from sqlalchemy import Connection, Row, delete, insert, select, update

from elastane.cluster.controller.store.database import count_change
from elastane.cluster.controller.store.tables import nodes
from elastane.cluster.nouns.pools import Node, NodeWanted

HEARD_S = 60.0
"""A node that has not changed is written this often."""
COLUMNS = [nodes.c[name] for name in Node.__struct_fields__]


def find_node(tx: Connection, name: str) -> Node | None:
    row = tx.execute(select(*COLUMNS).where(nodes.c.name == name)).one_or_none()
    return _decode_node(row) if row else None


def list_nodes(tx: Connection) -> tuple[Node, ...]:
    """Return all nodes, by name."""
    return tuple(_decode_node(row) for row in tx.execute(select(*COLUMNS).order_by(nodes.c.name)))


def record_node(tx: Connection, name: str, pool: str, devices: int, now_s: float) -> None:
    """Record that an engine has seen a node. Its wanted state stays as it was."""
    here = nodes.c.name == name
    before = tx.execute(select(nodes.c.pool, nodes.c.devices, nodes.c.heard_s).where(here)).one_or_none()
    if (
        before is not None
        and (before.pool, before.devices) == (pool, devices)
        and 0 <= now_s - before.heard_s < HEARD_S
    ):
        return
    if before is None:
        tx.execute(
            insert(nodes).values(
                name=name, pool=pool, devices=devices, wanted="use", why="", heard_s=now_s, version=1
            )
        )
    else:
        tx.execute(update(nodes).where(here).values(pool=pool, devices=devices, heard_s=now_s))
    if before is None or (before.pool, before.devices) != (pool, devices):
        count_change(tx)


def update_node(
    tx: Connection, name: str, wanted: NodeWanted, why: str, gone_at_s: float | None = None
) -> Node:
    """Set the wanted state of a known node: use, drain or failed."""
    row = tx.execute(
        update(nodes)
        .where(nodes.c.name == name)
        .values(wanted=wanted, why=why, gone_at_s=gone_at_s, version=nodes.c.version + 1)
        .returning(*COLUMNS)
    ).one()
    count_change(tx)
    return _decode_node(row)


def forget_node(tx: Connection, name: str) -> None:
    """Delete a node. If an engine sees it again, it is recorded as new."""
    tx.execute(delete(nodes).where(nodes.c.name == name))
    count_change(tx)


def _decode_node(row: Row[Any]) -> Node:
    return Node(**{name: getattr(row, name) for name in Node.__struct_fields__})
