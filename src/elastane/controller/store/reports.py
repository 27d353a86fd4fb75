"""What others report about the world: the newest word about each thing, for as long as it is valid."""

from typing import NamedTuple

import msgspec
from sqlalchemy import Connection, delete, insert, select

from elastane.api.wire import Capacity, Metric, Price
from elastane.controller.store.database import changed
from elastane.controller.store.rows import text_of
from elastane.controller.store.tables import reports


class Reports(NamedTuple):
    """Those that still count; at most one about each thing."""

    capacities: tuple[Capacity, ...]
    metrics: tuple[Metric, ...]
    prices: tuple[Price, ...]


def write(tx: Connection, report: Capacity | Metric | Price, now_s: float) -> None:
    kind = str(report.__struct_config__.tag)
    about = report.metric if isinstance(report, Metric) else report.pool
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


def valid(tx: Connection, now_s: float) -> Reports:
    rows = tx.execute(select(reports.c.body).where(reports.c.valid_until_s > now_s).order_by(reports.c.about))
    found = [msgspec.json.decode(row.body, type=Capacity | Metric | Price) for row in rows]
    return Reports(
        capacities=tuple(one for one in found if isinstance(one, Capacity)),
        metrics=tuple(one for one in found if isinstance(one, Metric)),
        prices=tuple(one for one in found if isinstance(one, Price)),
    )
