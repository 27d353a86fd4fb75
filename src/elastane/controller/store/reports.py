"""What others report about the world: the newest word about each thing, for as long as it is valid."""

import msgspec
from sqlalchemy import Connection, delete, insert, select

from elastane.api.wire import Capacity, Metric
from elastane.controller.store.database import changed
from elastane.controller.store.rows import text_of
from elastane.controller.store.tables import reports


def write(tx: Connection, report: Capacity | Metric, now_s: float) -> None:
    kind, about = ("capacity", report.pool) if isinstance(report, Capacity) else ("metric", report.metric)
    tx.execute(delete(reports).where(reports.c.kind == kind, reports.c.about == about))
    tx.execute(
        insert(reports).values(
            kind=kind,
            about=about,
            body=text_of(report),
            reported_s=now_s,
            valid_until_s=now_s + report.valid_s,
        )
    )
    changed(tx)


def valid(tx: Connection, now_s: float) -> tuple[tuple[Capacity, ...], tuple[Metric, ...]]:
    """Those that still count."""
    rows = tx.execute(select(reports.c.body).where(reports.c.valid_until_s > now_s).order_by(reports.c.about))
    found = [msgspec.json.decode(row.body, type=Capacity | Metric) for row in rows]
    return (
        tuple(one for one in found if isinstance(one, Capacity)),
        tuple(one for one in found if isinstance(one, Metric)),
    )
