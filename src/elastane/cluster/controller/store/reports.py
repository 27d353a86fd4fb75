"""Reports from outside of the cluster: the newest one about each subject, while it is valid."""

from typing import NamedTuple

from sqlalchemy import Connection, delete, insert, select

from elastane.cluster.controller.store.columns import JsonColumn, encode_json
from elastane.cluster.controller.store.database import count_change
from elastane.cluster.controller.store.failures import UnreadableRecord
from elastane.cluster.controller.store.tables import reports
from elastane.cluster.nouns.pools import Capacity, Metric, Price
from elastane.common.safe_text import escape_line
from elastane.common.untrusted_data import Malformed


class Reports(NamedTuple):
    """The valid reports, at most one about each subject."""

    capacities: tuple[Capacity, ...]
    metrics: tuple[Metric, ...]
    prices: tuple[Price, ...]


_decode_report = JsonColumn[Capacity | Metric | Price](Capacity | Metric | Price)


def write_outside_report(tx: Connection, report: Capacity | Metric | Price, now_s: float) -> None:
    kind = str(report.__struct_config__.tag)
    about = report.metric if isinstance(report, Metric) else report.pool
    tx.execute(delete(reports).where(reports.c.kind == kind, reports.c.about == about))
    tx.execute(
        insert(reports).values(
            kind=kind,
            about=about,
            body=encode_json(report),
            reported_s=now_s,
            valid_until_s=now_s + report.valid_s,
        )
    )
    count_change(tx)


def list_valid_reports(tx: Connection, now_s: float) -> Reports:
    """Return the valid reports.

    Raises:
        UnreadableRecord: one cannot be read. Without it, jobs could get more devices than exist.
    """
    query = select(reports.c.kind, reports.c.about, reports.c.body).where(reports.c.valid_until_s > now_s)
    found: list[Capacity | Metric | Price] = []
    for kind, about, body in tx.execute(query.order_by(reports.c.about)):
        what = escape_line(f"the {kind} of {about}", 100)
        try:
            found.append(_decode_report(body))
        except Malformed as error:
            do = "report it again (elastane tell), or wait until it is not valid any more"
            raise UnreadableRecord(f"the last report of {what}", str(error), do=do) from error
    return Reports(
        capacities=tuple(report for report in found if isinstance(report, Capacity)),
        metrics=tuple(report for report in found if isinstance(report, Metric)),
        prices=tuple(report for report in found if isinstance(report, Price)),
    )
