"""What each owner of a site has given to a run with bound data, and got: computed from records. Pure."""

from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby

import msgspec
from elastane.cluster.nouns.usage import UsageRow
from elastane.run.nouns.records import EventLine, LedgerLine
from elastane.run.observability.bound_data import read_worker_sites

from pilot.checks import Check, check_cluster
from pilot.figures import Figures
from pilot.record import Action, ArmRecord
from pilot.scenario import Capacity, Kill, Price, Scenario

CHANGES = {
    "worker.joined": ("joined", "a worker joins"),
    "worker.left": ("left", "a worker leaves"),
    "worker.died": ("died", "a worker has died"),
    "site.absent": ("absent", "rounds leave the site out"),
    "site.present": ("present", "the site takes part again"),
}
"""The kind and the words of an action, by the kind of the run's event."""


class Pause(msgspec.Struct, frozen=True):
    """Consecutive rounds without a site.

    Args:
        first: the number of the first of these rounds.
        last: the number of the last one.
        seconds: from the end of the last round with the site, or of the first one of all, to the end of the
            next round with it, or of the last one of all.
    """

    first: int
    last: int
    seconds: float


class OwnerFigures(msgspec.Struct, frozen=True, kw_only=True):
    """The figures of an owner.

    Args:
        rounds: those in which its site took part.
        samples: those of its site that were trained on; one that was read in two epochs counts twice.
        sent_bytes: from its site to others.
        received_bytes: from other sites to its own.
        device_s: the device-seconds of its devices.
        device_cost: the cost of these.
        egress_cost: the cost of what its site has sent.
        pauses: the rounds without its site.
    """

    rounds: int
    samples: int
    sent_bytes: int
    received_bytes: int
    device_s: float
    device_cost: float
    egress_cost: float
    pauses: tuple[Pause, ...]

    @property
    def cost(self) -> float:
        return self.device_cost + self.egress_cost


class OwnerRate(msgspec.Struct, frozen=True):
    """The workers of a job at a site, the price of one for an hour, and that of all."""

    workers: int
    price: float
    per_h: float


class PriceEffect(msgspec.Struct, frozen=True, kw_only=True):
    """What a changed price has done until the next event.

    Args:
        at_s: the second of the pilot.
        owner: the one with another price.
        before: by owner, before the change.
        at_once: by owner, with the same workers and the new price.
        after: by owner, before the next event.
    """

    at_s: float
    owner: str
    before: dict[str, OwnerRate]
    at_once: dict[str, OwnerRate]
    after: dict[str, OwnerRate]


def compute_owner_figures(
    owner: str, ledger: Sequence[LedgerLine], rank_sites: Sequence[str], usage: Iterable[UsageRow]
) -> OwnerFigures:
    """Return the figures of an owner.

    Args:
        owner: the name of its site, and of its only pool.
        ledger: all rounds.
        rank_sites: the site of each virtual rank.
        usage: of the whole run, by pool; bytes have ``SOURCE>TARGET`` as their pool.
    """
    mine = [rank for rank, site in enumerate(rank_sites) if site == owner]
    spans = [line.samples.shards.get(rank, (0, 0)) for line in ledger for rank in mine]
    rows = list(usage)
    sent = [row for row in rows if row.pool.startswith(f"{owner}>")]
    devices = [row for row in rows if row.pool == owner]
    return OwnerFigures(
        rounds=sum(owner not in line.absent for line in ledger),
        samples=sum(stop - start for start, stop in spans),
        sent_bytes=round(sum(row.egress_bytes for row in sent)),
        received_bytes=round(sum(row.egress_bytes for row in rows if row.pool.endswith(f">{owner}"))),
        device_s=sum(row.device_s for row in devices),
        device_cost=sum(row.cost for row in devices),
        egress_cost=sum(row.egress_cost for row in sent),
        pauses=find_pauses(owner, ledger),
    )


def find_pauses(owner: str, ledger: Sequence[LedgerLine]) -> tuple[Pause, ...]:
    """Return the pauses of a site, the first one first."""
    found: list[Pause] = []
    for is_absent, some in groupby(range(len(ledger)), lambda place: owner in ledger[place].absent):
        places = [*some]
        if is_absent:
            before, after = max(0, places[0] - 1), min(len(ledger) - 1, places[-1] + 1)
            seconds = ledger[after].time - ledger[before].time
            found.append(Pause(ledger[places[0]].step, ledger[places[-1]].step, seconds))
    return tuple(found)


def list_changes(events: Iterable[EventLine], began_s: float) -> tuple[Action, ...]:
    """Return the joins, leaves and deaths of a run, as actions to be drawn.

    Args:
        events: those of the run.
        began_s: the beginning of the pilot, in seconds since 1970.
    """
    lines = list(events)
    sites = read_worker_sites(lines)
    found = []
    for line in lines:
        if line.kind in CHANGES:
            kind, words = CHANGES[line.kind]
            named = {site for worker in line.workers for site in sites.get(worker, ())}
            where = ", ".join(sorted(named)) or line.who.removeprefix("site ")
            found.append(Action(at_s=line.time - began_s, kind=kind, text=f"{where}: {words}"))
    return tuple(found)


def list_price_effects(arm: ArmRecord, scenario: Scenario) -> tuple[PriceEffect, ...]:
    """Return what each change of a price has done.

    Args:
        arm: with its events.
        scenario: its pools have the first prices.
    """
    prices = {pool.name: pool.price for pool in scenario.cluster.pools or ()}
    found = []
    for event, next_s in zip(arm.played, [*(one.at for one in arm.played[1:]), arm.ended_s], strict=True):
        if isinstance(event.what, Price):
            new = {**prices, event.what.pool: event.what.price}
            found.append(
                PriceEffect(
                    at_s=event.at,
                    owner=event.what.pool,
                    before=_rate_owners(arm, prices, event.at),
                    at_once=_rate_owners(arm, new, event.at),
                    after=_rate_owners(arm, new, next_s),
                )
            )
            prices = new
    return tuple(found)


def _rate_owners(arm: ArmRecord, prices: Mapping[str, float], until_s: float) -> dict[str, OwnerRate]:
    """Return the workers of each owner as they were last observed before a time, at these prices."""
    seen = [one.granted for one in arm.observations if one.at_s < until_s and one.size]
    workers = seen[-1] if seen else {}
    return {
        owner: OwnerRate(workers.get(owner, 0), price, workers.get(owner, 0) * price)
        for owner, price in prices.items()
    }


def check_owners(
    scenario: Scenario,
    arm: ArmRecord,
    figures: Figures,
    ledger: Sequence[LedgerLine],
    *,
    proved: bool,
    equal: bool,
) -> tuple[Check, ...]:
    """Check what a pilot with owners must show.

    Args:
        ledger: of its only job.
        proved: ``elastane verify`` has proved the run.
        equal: the repeated run has the same bytes.
    """
    (job,) = arm.jobs
    events = [event.what for event in scenario.events]
    left = [what.pool for what in events if isinstance(what, Capacity) and not what.devices]
    killed = [what.site for what in events if isinstance(what, Kill) and what.site]
    last = ledger[-1].absent
    is_finished = (job.state, job.crashes, job.preemptions) == ("finished", 0, 0)
    return (
        Check(f"{job.name} finished, and never had to begin again", is_finished),
        Check("`elastane verify`: only workers of a site computed with its data, each sample once", proved),
        Check(f"one machine that repeats the run (--from {job.name}@0) trains the same bytes", equal),
        *(
            Check(f"rounds left {owner} out while it was away", bool(find_pauses(owner, ledger)))
            for owner in dict.fromkeys(left)
        ),
        *(Check(f"{owner} takes part in the last round", owner not in last) for owner in (*left, *killed)),
        *check_cluster(arm.name, figures),
    )
