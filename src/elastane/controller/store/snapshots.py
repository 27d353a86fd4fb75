"""The whole cluster at one moment, for a plan."""

from collections import Counter
from collections.abc import Iterable, Sequence

import msgspec
from sqlalchemy import Connection, select

from elastane.api.cluster import Draining, JobState, Snapshot
from elastane.api.config import Config
from elastane.api.pools import Pool, Restriction
from elastane.api.scheduling_rules import SchedulingRules
from elastane.controller.limits import departing, limited, priced, restricting
from elastane.controller.store import documents, nodes, reports
from elastane.controller.store.database import change
from elastane.controller.store.states import Seen, seen_of
from elastane.controller.store.tables import jobs

COLUMNS = [
    jobs.c[name]
    for name in (
        "number",
        "name",
        "team",
        "state",
        "workers",
        "spec",
        "wanted",
        "granted",
        "observed",
        "submitted_s",
        "admitted_s",
        "resized_s",
        "setbacks",
        "promised",
        "retry_at_s",
        "using",
        "using_since_s",
        "spent",
    )
]


def pools_of(tx: Connection, config: Config, now_s: float) -> tuple[Pool, ...]:
    """The declared pools, with the devices that they really have, at the prices of now."""
    said = reports.valid(tx, now_s)
    seen, triggers = nodes.every(tx), config.triggers or ()
    found = limited(config.pools or (), seen, said.capacities, said.metrics, triggers, now_s=now_s)
    return priced(found, said.prices)


def _binding(
    tx: Connection, config: Config, pools: tuple[Pool, ...], now_s: float
) -> tuple[Restriction, ...]:
    """Return the restrictions that leave less of a pool than is there."""
    said, there = reports.valid(tx, now_s), {pool.name: pool.devices for pool in pools}
    found = restricting(said.capacities, said.metrics, config.triggers or ())
    return tuple(one for one in found if one.limit < there.get(one.pool, 0))


class Taken(msgspec.Struct, frozen=True):
    """A snapshot.

    Args:
        change: number of the last change in it.
        snapshot: of the cluster.
        wrong: what cannot be read of which job's record.
        undecidable: names of jobs about which nothing can be decided; what they hold is nobody else's.
    """

    change: int
    snapshot: Snapshot
    wrong: dict[str, str] = {}
    undecidable: frozenset[str] = frozenset()


def snapshot(tx: Connection, now_s: float, config: Config | None = None, *, running: bool = False) -> Taken:
    """Everything that a plan depends on; jobs that have ended are not in it.

    Args:
        tx: a transaction.
        now_s: the time.
        config: what would be declared; None: what is.
        running: only with the jobs that hold devices.
    """
    config = documents.config(tx) if config is None else config
    pools = pools_of(tx, config, now_s)
    here = jobs.c.state == "running" if running else jobs.c.ended_s.is_(None)
    rows = tx.execute(select(*COLUMNS).where(here).order_by(jobs.c.number))
    seen = [seen_of(row, now_s) for row in rows]
    return Taken(
        change(tx),
        Snapshot(
            now_s=now_s,
            pools=pools,
            teams=config.teams or (),
            cohorts=config.cohorts or (),
            priorities=config.priorities or (),
            reservations=config.reservations or (),
            rules=config.rules or SchedulingRules(),
            jobs=_states(seen, pools, now_s),
            departures=departing(nodes.every(tx), now_s=now_s),
            restrictions=_binding(tx, config, pools, now_s),
        ),
        wrong={one.state.name: one.wrong for one in seen if one.wrong},
        undecidable=frozenset(one.state.name for one in seen if not one.decidable),
    )


def _states(seen: Sequence[Seen], pools: Iterable[Pool], now_s: float) -> tuple[JobState, ...]:
    """The jobs; while nobody knows what one of them holds, it holds whatever the others do not."""
    states = [one.state for one in seen]
    uncertain = next((number for number, one in enumerate(seen) if one.uncertain), None)
    if uncertain is None:
        return tuple(states)
    used = Counter[str]()
    for state in states:
        there = [(one.pool, one.workers) for one in state.holds]
        there += [(one.pool, one.workers) for one in state.draining]
        for pool, workers in there:
            used[pool] += workers * state.spec.resources_per_worker.devices
    rest = {pool.name: pool.devices - used[pool.name] for pool in pools}
    draining = tuple(
        Draining(pool=pool, workers=free, deadline_s=now_s) for pool, free in rest.items() if free > 0
    )
    states[uncertain] = msgspec.structs.replace(states[uncertain], draining=draining)
    return tuple(states)
