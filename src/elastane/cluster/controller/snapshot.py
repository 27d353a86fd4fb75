"""The snapshot of the cluster, from which the scheduler plans."""

from collections import Counter
from collections.abc import Iterable, Sequence

import msgspec
from sqlalchemy import Connection

from elastane.cluster.controller.cluster.capacity import (
    apply_prices,
    find_departures,
    find_restrictions,
    limit_pools,
)
from elastane.cluster.controller.cluster.uses import measure_occupancy
from elastane.cluster.controller.jobs.scheduler_state import SchedulerJob, read_scheduler_job
from elastane.cluster.controller.store import documents, jobs, nodes, reports
from elastane.cluster.controller.store.database import read_change
from elastane.cluster.nouns.cluster import Draining, JobState, Snapshot
from elastane.cluster.nouns.config import Config, SchedulingRules
from elastane.cluster.nouns.pools import Pool, Restriction
from elastane.cluster.nouns.usage import Occupancy, Use
from elastane.cluster.scheduler.calendar import find_reservation_peak


class TakenSnapshot(msgspec.Struct, frozen=True):
    """A snapshot of the store.

    Args:
        change: number of the last change in it.
        wrong: by job, the part of its record that cannot be read.
        undecidable: names of jobs about which nothing can be decided; they keep their devices.
    """

    change: int
    snapshot: Snapshot
    wrong: dict[str, str] = {}
    undecidable: frozenset[str] = frozenset()


def take_cluster_snapshot(
    tx: Connection, now_s: float, config: Config | None = None, *, running: bool = False
) -> TakenSnapshot:
    """Return everything that a plan depends on, without jobs that have ended.

    Args:
        config: replaces the declared one; None: the declared one.
        running: only with the jobs that hold devices.
    """
    config = documents.read_declared_config(tx) if config is None else config
    pools = measure_pools(tx, config, now_s)
    seen = [read_scheduler_job(job, now_s) for job in jobs.list_planned_jobs(tx, running=running)]
    return TakenSnapshot(
        read_change(tx),
        Snapshot(
            now_s=now_s,
            pools=pools,
            engines=config.engines or (),
            teams=config.teams or (),
            cohorts=config.cohorts or (),
            priorities=config.priorities or (),
            egress=config.egress or (),
            reservations=config.reservations or (),
            rules=config.rules or SchedulingRules(),
            jobs=_list_states(seen, pools, now_s),
            departures=find_departures(nodes.list_nodes(tx), now_s=now_s),
            restrictions=_list_binding(tx, config, pools, now_s),
        ),
        wrong={job.state.name: job.wrong for job in seen if job.wrong},
        undecidable=frozenset(job.state.name for job in seen if not job.decidable),
    )


def measure_pools(tx: Connection, config: Config, now_s: float) -> tuple[Pool, ...]:
    """Return the declared pools with their real devices and their current prices."""
    valid = reports.list_valid_reports(tx, now_s)
    seen, triggers = nodes.list_nodes(tx), config.triggers or ()
    found = limit_pools(config.pools or (), seen, valid.capacities, valid.metrics, triggers, now_s=now_s)
    return apply_prices(found, valid.prices)


def measure_cluster_occupancy(
    tx: Connection, config: Config, uses: Iterable[tuple[Use, ...]], now_s: float
) -> tuple[Occupancy, ...]:
    """Return the occupancy of each declared pool by the uses of all jobs, with what the calendar reserves."""
    pools, calendar = measure_pools(tx, config, now_s), config.reservations or ()
    reserved = {pool.name: find_reservation_peak(calendar, pool.name, now_s)[0] for pool in pools}
    return measure_occupancy(pools, nodes.list_nodes(tx), uses, reserved)


def _list_binding(
    tx: Connection, config: Config, pools: tuple[Pool, ...], now_s: float
) -> tuple[Restriction, ...]:
    """Return the restrictions that leave less of a pool than it has."""
    valid, there = reports.list_valid_reports(tx, now_s), {pool.name: pool.devices for pool in pools}
    found = find_restrictions(valid.capacities, valid.metrics, config.triggers or ())
    return tuple(restriction for restriction in found if restriction.limit < there.get(restriction.pool, 0))


def _list_states(seen: Sequence[SchedulerJob], pools: Iterable[Pool], now_s: float) -> tuple[JobState, ...]:
    """Return the jobs. While the devices of a job are unknown, it holds all that the others do not hold."""
    states = [job.state for job in seen]
    uncertain = next((number for number, job in enumerate(seen) if job.uncertain), None)
    if uncertain is None:
        return tuple(states)
    used = Counter[str]()
    for state in states:
        for place in state.places:
            used[place.pool] += place.workers * state.spec.worker_devices
    rest = {pool.name: pool.devices - used[pool.name] for pool in pools}
    draining = tuple(
        Draining(pool=pool, workers=free, deadline_s=now_s) for pool, free in rest.items() if free > 0
    )
    states[uncertain] = msgspec.structs.replace(states[uncertain], draining=draining)
    return tuple(states)
