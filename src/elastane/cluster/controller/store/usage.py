"""Sums of device-seconds and their cost, by group."""

from collections.abc import Iterable
from typing import Any, Literal, TypeAlias

from sqlalchemy import Connection, case, func, select

from elastane.cluster.controller.jobs.accounts import close_intervals
from elastane.cluster.controller.store import rows
from elastane.cluster.controller.store.columns import is_moment
from elastane.cluster.controller.store.tables import jobs, usage
from elastane.cluster.nouns.usage import UsageRow

By: TypeAlias = Literal["team", "user", "job", "pool"]


def sum_usage(
    tx: Connection, by: tuple[By, ...], from_s: float, until_s: float, teams: tuple[str, ...] | None
) -> tuple[UsageRow, ...]:
    """Return the usage between two times, including that of running jobs.

    Args:
        tx: a transaction.
        by: columns to group by; the others are empty.
        from_s: begin.
        until_s: end; not in the future.
        teams: only the usage of these teams; None: of all.
    """
    sums: dict[tuple[str, ...], dict[str, float]] = {}
    for key, terms, device_s, cost in (
        *_sum_closed(tx, by, from_s, until_s, teams),
        *_sum_open(tx, by, from_s, until_s, teams),
    ):
        row = sums.setdefault(key, {})
        row[f"{terms}_device_s"] = row.get(f"{terms}_device_s", 0.0) + device_s
        row["cost"] = row.get("cost", 0.0) + cost
    return tuple(_build_row(dict(zip(by, key, strict=True)), sums[key]) for key in sorted(sums))


def _build_row(key: dict[Any, Any], sums: dict[str, Any]) -> UsageRow:
    return UsageRow(**key, **sums)


def _sum_closed(
    tx: Connection, by: tuple[By, ...], from_s: float, until_s: float, teams: tuple[str, ...] | None
) -> Iterable[tuple[tuple[str, ...], str, float, float]]:
    begin = case((usage.c.from_s < from_s, from_s), else_=usage.c.from_s)
    end = case((usage.c.until_s > until_s, until_s), else_=usage.c.until_s)
    device_s = usage.c.devices * (end - begin)
    groups = [usage.c[name] for name in by]
    query = (
        select(*groups, usage.c.terms, func.sum(device_s), func.sum(device_s * usage.c.price / 3600))
        .where(usage.c.until_s > from_s, usage.c.from_s < until_s)
        .group_by(*groups, usage.c.terms)
    )
    if teams is not None:
        query = query.where(usage.c.team.in_(teams))
    for *key, terms, seconds, cost in tx.execute(query):
        yield tuple(key), terms, seconds, cost


def _sum_open(
    tx: Connection, by: tuple[By, ...], from_s: float, until_s: float, teams: tuple[str, ...] | None
) -> Iterable[tuple[tuple[str, ...], str, float, float]]:
    query = select(jobs.c.name, jobs.c.team, jobs.c.user, jobs.c.using, jobs.c.using_since_s)
    query = query.where(jobs.c.ended_s.is_(None), jobs.c.using != "[]")
    if teams is not None:
        query = query.where(jobs.c.team.in_(teams))
    found: Iterable[Any] = tx.execute(query)
    for row in found:
        since_s = row.using_since_s if is_moment(row.using_since_s) else None
        for interval in close_intervals(rows.decode_uses(row.using), since_s, until_s):
            device_s, cost = interval.clip(from_s, until_s)
            if device_s:
                columns = {"job": row.name, "team": row.team, "user": row.user, "pool": interval.pool}
                yield tuple(columns[name] for name in by), interval.terms, device_s, cost
