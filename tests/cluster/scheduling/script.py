"""The script of a scheduling story, and the cluster that plays it.

One command a line; ``#`` begins a comment. ``pool``, ``egress``, ``cohort``, ``team``, ``rules`` and
``reserve`` describe the cluster; ``submit``, ``end``, ``pause``, ``resume``, ``scale``, ``price``, ``lose``,
``repair``, ``notice`` and ``gone`` are what happens to it; ``wait 2m`` lets time pass, with a plan every 30
seconds.
"""

import random
from datetime import UTC, datetime, time

import msgspec

from elastane.cluster.nouns.cluster import Holding, JobState, Snapshot
from elastane.cluster.nouns.config import (
    Cohort,
    DeclaredEngine,
    EgressPrices,
    Quota,
    Reservation,
    SchedulingRules,
    Team,
    Weekly,
)
from elastane.cluster.nouns.jobs import DataPlacement, ElasticPolicy, JobSpec, RunPolicy, WorkerResources
from elastane.cluster.nouns.plans import Decision
from elastane.cluster.nouns.pools import Departure, Pool
from elastane.cluster.scheduler.explanations import explain_decision
from tests.cluster.properties.scheduler_model import TICK_S, Cluster
from tests.cluster.properties.scheduler_strategies import PRIORITIES

replace = msgspec.structs.replace
MONDAY = datetime(2026, 11, 23, 9, tzinfo=UTC)
UNITS = {"s": 1, "m": 60, "h": 3600}


class Story:
    """A player of scripts that writes down every new decision.

    Attributes:
        lines: time, headline and reasons of each decision that differs from the job's last one.
    """

    def __init__(self) -> None:
        snapshot = Snapshot(now_s=MONDAY.timestamp(), priorities=PRIORITIES, rules=SchedulingRules())
        self._cluster = Cluster(snapshot, random.Random(1))
        self._jobs = 0
        self._last: dict[str, Decision] = {}
        self.lines: list[str] = []

    def play(self, script: str) -> None:
        """Run all commands of a script."""
        for line in script.splitlines():
            command, *words = line.split("#")[0].split() or [""]
            if command:
                names = [word for word in words if "=" not in word]
                options = dict(word.split("=", 1) for word in words if "=" in word)
                getattr(self, f"_run_{command}")(*names, **options)

    # -- the cluster ---------------------------------------------------------------------------------------

    def _run_pool(
        self, name: str, *flags: str, devices: str, device: str = "", price: str = "1", site: str = ""
    ) -> None:
        """Declare a pool; one at a site belongs to an engine of the name of the site."""
        pool = Pool(
            name=name,
            device=device or name,
            devices=int(devices),
            spot="spot" in flags,
            price=float(price),
            site=site,
            engine=site,
        )
        engines = (*self._now.engines, DeclaredEngine(name=site, kind="slurm")) if site else ()
        self._change(pools=(*self._now.pools, pool), engines=engines)

    def _run_price(self, name: str, price: str) -> None:
        pools = (replace(pool, price=float(price)) if pool.name == name else pool for pool in self._now.pools)
        self._change(pools=tuple(pools))

    def _run_egress(self, name: str, **prices: str) -> None:
        found = {site: float(price) for site, price in prices.items()}
        self._change(egress=(*self._now.egress, EgressPrices(name=name, prices=found)))

    def _run_cohort(self, name: str, **quotas: str) -> None:
        self._change(cohorts=(*self._now.cohorts, Cohort(name=name, quotas=_read_quotas(quotas))))

    def _run_team(self, name: str, cohort: str = "", **quotas: str) -> None:
        others = (one for one in self._now.teams if one.name != name)
        self._change(teams=(*others, Team(name=name, cohort=cohort, quotas=_read_quotas(quotas))))

    def _run_rules(self, **values: str) -> None:
        self._change(rules=replace(self._now.rules, **{key: float(value) for key, value in values.items()}))

    def _run_reserve(self, name: str, *, pool: str, devices: str, start: str, end: str) -> None:
        when = Weekly(start=time.fromisoformat(start), end=time.fromisoformat(end))
        one = Reservation(name=name, pool=pool, devices=int(devices), when=when)
        self._change(reservations=(*self._now.reservations, one))

    # -- the jobs ------------------------------------------------------------------------------------------

    def _run_submit(
        self, name: str, *flags: str, team: str, workers: str, priority: str = "", **spec: str
    ) -> None:
        self._jobs += 1
        state = JobState(
            number=self._jobs,
            spec=JobSpec(
                name=name,
                script="train.py",
                team=team,
                priority_class=priority,
                spot="spot" in flags,
                borrow="no-borrow" not in flags,
                processes=int(spec.get("processes", 1)),
                resources_per_worker=WorkerResources(
                    devices=int(spec["devices"]) if "devices" in spec else None,
                    kinds=tuple(spec["kinds"].split(",")) if "kinds" in spec else (),
                ),
                elastic_policy=_read_policy(workers),
                budget=float(spec["budget"]) if "budget" in spec else None,
                data=DataPlacement(sites=tuple(spec["sites"].split(",")) if "sites" in spec else ()),
            ),
            parameters=int(float(spec.get("parameters", 0))),
            submitted_s=0.0,
        )
        self._cluster.submit(state)

    def _run_end(self, name: str) -> None:
        self._change(jobs=tuple(one for one in self._now.jobs if one.name != name))

    def _run_pause(self, name: str) -> None:
        self._cluster.change(name, run_policy=RunPolicy(suspend=True))

    def _run_resume(self, name: str) -> None:
        self._cluster.change(name, run_policy=RunPolicy())

    def _run_scale(self, name: str, *, workers: str) -> None:
        self._cluster.change(name, elastic_policy=_read_policy(workers))

    # -- the devices ---------------------------------------------------------------------------------------

    def _run_lose(self, pool: str, *, devices: str, job: str) -> None:
        """Let a node fail, and with it the workers of a job."""
        node = Departure(node="node-1", pool=pool, how="failed")
        self._change(departures=(node,))
        self._add_devices(pool, -int(devices))
        self._change_holding(job, pool, failed=int(devices))
        self._replace_job(job, faulty_since_s=self._now.now_s)

    def _run_repair(self, pool: str, *, devices: str, job: str) -> None:
        """Bring the node back, and with it the workers of the job."""
        self._change(departures=())
        self._add_devices(pool, int(devices))
        self._change_holding(job, pool, failed=0)
        self._replace_job(job, faulty_since_s=None)

    def _run_notice(self, pool: str, *, devices: str, job: str, gone_in: str) -> None:
        """Announce that the provider of a pool takes devices away, with workers of a job on them."""
        gone_at_s = self._now.now_s + _read_seconds(gone_in)
        self._change(
            pools=tuple(
                replace(one, leaving=int(devices), gone_at_s=gone_at_s) if one.name == pool else one
                for one in self._now.pools
            )
        )
        self._change_holding(job, pool, leaving=int(devices))

    def _run_gone(self, pool: str, *, devices: str) -> None:
        """Take the devices of a notice away."""
        self._change(
            pools=tuple(
                replace(one, leaving=0, gone_at_s=None, devices=one.devices - int(devices))
                if one.name == pool
                else one
                for one in self._now.pools
            )
        )

    # -- time ----------------------------------------------------------------------------------------------

    def _run_wait(self, duration: str) -> None:
        for _ in range(int(_read_seconds(duration) // TICK_S)):
            now = datetime.fromtimestamp(self._now.now_s, UTC)
            teams = {one.name: one.spec.team for one in self._now.jobs}
            for decision in self._cluster.tick().decisions:
                self._write(f"{now:%H:%M:%S}", decision, teams)

    def _write(self, clock: str, decision: Decision, teams: dict[str, str]) -> None:
        last = self._last.get(decision.job)
        self._last[decision.job] = decision
        if last is not None and decision.action in {"keep", "wait"}:
            known = decision.workers == last.workers and {*decision.why} <= {*last.why, last.ceiling}
            if known:
                return
        headline, *reasons = explain_decision(decision, teams)
        self.lines.append(f"{clock} {headline}")
        self.lines += (f"    {one.replace(f'{MONDAY:%Y-%m-%d} ', '')}" for one in reasons)

    # -- changes of the snapshot ---------------------------------------------------------------------------

    @property
    def _now(self) -> Snapshot:
        return self._cluster.snapshot

    def _change(self, **fields: object) -> None:
        self._cluster.snapshot = replace(self._now, **fields)

    def _add_devices(self, pool: str, devices: int) -> None:
        self._change(
            pools=tuple(
                replace(one, devices=one.devices + devices) if one.name == pool else one
                for one in self._now.pools
            )
        )

    def _replace_job(self, name: str, **fields: object) -> None:
        self._change(
            jobs=tuple(replace(one, **fields) if one.name == name else one for one in self._now.jobs)
        )

    def _change_holding(self, job: str, pool: str, **fields: int) -> None:
        def change(one: Holding) -> Holding:
            return replace(one, **fields) if one.pool == pool else one

        self._replace_job(job, holds=tuple(change(one) for one in self._cluster.of(job).holds))


def _read_quotas(quotas: dict[str, str]) -> tuple[Quota, ...]:
    """Read ``h100=4`` as a nominal quota, ``h100=4+2`` as one with a borrowing limit of 2."""
    found = []
    for pool, text in quotas.items():
        nominal, _, borrowing = text.partition("+")
        found.append(
            Quota(
                pool=pool,
                nominal_quota=int(nominal),
                borrowing_limit=int(borrowing) if borrowing else None,
            )
        )
    return tuple(found)


def _read_policy(workers: str) -> ElasticPolicy:
    low, _, high = workers.partition(":")
    return ElasticPolicy(
        min_replicas=int(low), max_replicas=int(high or low), graceful_shutdown_timeout_in_seconds=20.0
    )


def _read_seconds(duration: str) -> float:
    return float(duration[:-1]) * UNITS[duration[-1]]
