"""Checks of the engines, pools, quotas, priorities and the calendar of a cluster."""

from collections.abc import Collection, Iterable, Mapping
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import msgspec

from elastane.cluster.nouns.cluster import Snapshot
from elastane.cluster.nouns.config import (
    OTHER_SITES,
    Cohort,
    DeclaredEngine,
    EgressPrices,
    Once,
    Quota,
    Reservation,
    SchedulingRules,
    Team,
    Weekly,
)
from elastane.cluster.nouns.engine_options import OPTIONS, check_options
from elastane.cluster.nouns.pools import Pool
from elastane.common.field_checks import (
    check_bounded_count,
    check_minimum,
    check_name,
    check_positive,
    check_unique,
    make_field_error,
)

LONGEST_S = 30 * 24 * 3600.0
"""The longest lead time of a reservation, and the longest horizon and cooldown of the rules."""
LEAST_DIVISOR = 1e-6
"""The smallest weight and grain; shares are divided by weights and counted in grains."""
MOST_PRICE = 1e9
"""The highest price of a device for an hour."""
MOST_EGRESS_PRICE = 1e3
"""The highest price of 10^9 bytes. With it no report of a run makes a cost that cannot be stored."""


def check_cluster(cluster: Snapshot) -> None:
    """Check all parts of a cluster except its jobs."""
    pools = [pool.name for pool in cluster.pools]
    check_unique("pools", pools)
    check_unique("priorities", (priority.name for priority in cluster.priorities))
    check_unique("reservations", (reservation.name for reservation in cluster.reservations))
    check_unique("egress", (prices.name for prices in cluster.egress))
    for pool in cluster.pools:
        _check_pool(pool)
    for prices in cluster.egress:
        _check_egress(prices)
    _check_tree(cluster.cohorts, cluster.teams, pools)
    for reservation in cluster.reservations:
        _check_reservation(reservation, pools)
    check_rules(cluster.rules)


def check_rules(rules: SchedulingRules) -> None:
    """Check the scheduling rules."""
    check_positive("rules.horizonS", rules.horizon_s)
    _check_duration("rules.horizonS", rules.horizon_s)
    _check_duration("rules.cooldownS", rules.cooldown_s)
    check_minimum("rules.minRunTimeS", rules.min_run_time_s, 0)
    check_minimum("rules.patienceS", rules.patience_s, 0)
    check_minimum("rules.worth", rules.worth, 0)
    _check_divisor("rules.fairnessGrain", rules.fairness_grain)


def _check_duration(field: str, seconds: float) -> None:
    check_minimum(field, seconds, 0)
    if seconds > LONGEST_S:
        raise make_field_error(
            field,
            f"{seconds:g} is more than {LONGEST_S:.0f}",
            f"write {LONGEST_S:.0f} or less",
            means="plans reach at most 30 days ahead",
        )


def _check_divisor(field: str, value: float) -> None:
    check_positive(field, value)
    if value < LEAST_DIVISOR:
        raise make_field_error(
            field,
            f"{value:g} is less than {LEAST_DIVISOR:g}",
            f"write {LEAST_DIVISOR:g} or more",
            means="shares are divided by it and would overflow",
        )


def _check_pool(pool: Pool) -> None:
    field = f"pools.{pool.name}"
    check_name("pools", pool.name)
    check_bounded_count(f"{field}.devices", pool.devices, 0)
    check_bounded_count(f"{field}.leaving", pool.leaving, 0)
    check_bounded_count(f"{field}.devicesPerNode", pool.devices_per_node, 1)
    _check_price(f"{field}.price", pool.price, MOST_PRICE)
    if pool.leaving > pool.devices:
        raise make_field_error(
            f"{field}.leaving", f"{pool.leaving} is more than its devices", f"write at most {pool.devices}"
        )


def _check_egress(prices: EgressPrices) -> None:
    field = f"egress.{prices.name}"
    check_name("egress", prices.name)
    for site, price in prices.prices.items():
        if site != OTHER_SITES:
            check_name(f"{field}.prices", site)
        _check_price(f"{field}.prices.{site}", price, MOST_EGRESS_PRICE)


def _check_price(field: str, price: float, most: float) -> None:
    check_minimum(field, price, 0)
    if price > most:
        raise make_field_error(field, f"{price:g} is more than {most:g}", "write a lower one")


def check_engines(engines: Collection[DeclaredEngine], pools: Iterable[Pool]) -> None:
    """Check the engines, and what the pools say about them."""
    declared = {engine.name: engine for engine in engines}
    check_unique("engines", (engine.name for engine in engines))
    for engine in declared.values():
        check_name("engines", engine.name)
        check_options(
            f"engines.{engine.name}.options",
            f"an engine of kind {engine.kind}",
            engine.options,
            OPTIONS[engine.kind].engine,
        )
    at_site: dict[str, Pool] = {}
    for pool in pools:
        _check_engine_of_pool(pool, declared)
        first = at_site.setdefault(pool.site, pool) if pool.site else pool
        if first.engine != pool.engine:
            raise make_field_error(
                f"pools.{pool.name}.site",
                f"at site {pool.site}, this pool belongs to {_describe_engine(pool)}, and pool {first.name} "
                f"to {_describe_engine(first)}",
                "give the pools of each engine a site of their own",
                means="a job without data.sites is at one site, and its run is not divided between engines",
            )


def _check_engine_of_pool(pool: Pool, engines: Mapping[str, DeclaredEngine]) -> None:
    field = f"pools.{pool.name}"
    if pool.engine and pool.engine not in engines:
        write = f"write one of: {', '.join(engines)}" if engines else "declare the engine first"
        raise make_field_error(f"{field}.engine", f"there is no engine {pool.engine!r}", write)
    if pool.options and not pool.engine:
        raise make_field_error(
            f"{field}.options",
            "are given, and the pool has no engine",
            "remove them, or name the engine of the pool",
            means="they say how an engine starts agents, and the machine of the controller takes none",
        )
    if pool.engine:
        kind = engines[pool.engine].kind
        check_options(
            f"{field}.options", f"a pool of an engine of kind {kind}", pool.options, OPTIONS[kind].pool
        )


def _describe_engine(pool: Pool) -> str:
    return f"engine {pool.engine}" if pool.engine else "the machine of the controller"


def _check_tree(cohorts: Iterable[Cohort], teams: Iterable[Team], pools: list[str]) -> None:
    parents = {cohort.name: cohort.parent for cohort in cohorts}
    check_unique("teams and cohorts", (*(cohort.name for cohort in cohorts), *(team.name for team in teams)))
    write = f"write one of: {', '.join(parents)}" if parents else "declare the cohort first"
    for cohort in cohorts:
        field = f"cohorts.{cohort.name}"
        _check_node("cohorts", cohort, pools)
        if cohort.parent and cohort.parent not in parents:
            raise make_field_error(f"{field}.parent", f"there is no cohort {cohort.parent!r}", write)
        _check_no_cycle(field, cohort.name, parents)
    for team in teams:
        _check_node("teams", team, pools)
        for limit in msgspec.structs.fields(team.limits):
            check_bounded_count(
                f"teams.{team.name}.limits.{limit.encode_name}", getattr(team.limits, limit.name), 0
            )
        if team.cohort and team.cohort not in parents:
            raise make_field_error(f"teams.{team.name}.cohort", f"there is no cohort {team.cohort!r}", write)


def _check_no_cycle(field: str, name: str, parents: dict[str, str]) -> None:
    above = [name]
    while (parent := parents.get(above[-1], "")) != "":
        if parent in above:
            cycle = " > ".join([*above, parent])
            raise make_field_error(
                f"{field}.parent", f"forms a cycle: {cycle}", "remove one of these parents"
            )
        above.append(parent)


def _check_node(kind: str, node: Cohort | Team, pools: list[str]) -> None:
    field = f"{kind}.{node.name}"
    check_name(kind, node.name)
    _check_divisor(f"{field}.weight", node.weight)
    check_unique(f"{field}.quotas", (quota.pool for quota in node.quotas))
    for quota in node.quotas:
        _check_quota(f"{field}.quotas.{quota.pool}", quota, pools)


def _check_quota(field: str, quota: Quota, pools: list[str]) -> None:
    _check_known(f"{field}.pool", quota.pool, pools)
    check_bounded_count(f"{field}.nominalQuota", quota.nominal_quota, 0)
    check_bounded_count(f"{field}.borrowingLimit", quota.borrowing_limit, 0)
    check_bounded_count(f"{field}.lendingLimit", quota.lending_limit, 0)


def _check_reservation(reservation: Reservation, pools: list[str]) -> None:
    field = f"reservations.{reservation.name}"
    check_name("reservations", reservation.name)
    _check_known(f"{field}.pool", reservation.pool, pools)
    check_bounded_count(f"{field}.devices", reservation.devices, 1)
    _check_duration(f"{field}.announcedAheadS", reservation.announced_ahead_s)
    match reservation.when:
        case Once(start=start, end=end):
            if start.tzinfo is None or end.tzinfo is None:
                raise make_field_error(
                    f"{field}.when", "has no time zone", f"write {start.isoformat()}Z, or an offset"
                )
            if end <= start:
                raise make_field_error(
                    f"{field}.when.end", f"{end} is not after {start}", "write a later time"
                )
        case Weekly(days=days, zone=zone):
            if not days:
                raise make_field_error(f"{field}.when.days", "is empty", "write for example [mon, tue]")
            try:
                ZoneInfo(zone)
            except (ZoneInfoNotFoundError, ValueError, OSError):
                raise make_field_error(
                    f"{field}.when.zone", f"{zone!r} is not a time zone", "write for example Europe/Berlin"
                ) from None


def _check_known(field: str, pool: str, pools: list[str]) -> None:
    if pool not in pools:
        write = f"write one of: {', '.join(pools)}" if pools else "declare the pool first"
        raise make_field_error(field, f"there is no pool {pool!r}", write)
