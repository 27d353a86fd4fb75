"""A small cluster that carries plans out, with delays and faults; and a second computation of its rules."""

import math
import random
from collections import Counter
from dataclasses import dataclass, field
from fractions import Fraction

import msgspec

from elastane.cluster.controller.jobs.size_history import AT_REST, SizeHistory, record_decision
from elastane.cluster.nouns.cluster import Draining, Holding, JobState, Snapshot
from elastane.cluster.nouns.config import Quota
from elastane.cluster.nouns.jobs import ElasticPolicy, JobSpec, WorkerResources
from elastane.cluster.nouns.plans import Decision, Plan
from elastane.cluster.nouns.pools import Pool
from elastane.cluster.scheduler.plan import plan

replace, asdict = msgspec.structs.replace, msgspec.structs.asdict
TICK_S = 30.0


def dice(seed: int) -> random.Random:
    return random.Random(seed)


def job(
    number: int,
    team: str = "t",
    *,
    low: int = 1,
    high: int | None = None,
    step: int | None = 1,
    sizes: tuple[int, ...] = (),
    devices: int | None = 1,
    priority: str = "",
    submitted_s: float = 0.0,
    drain_s: float = 20.0,
    state: dict | None = None,
    **spec,
) -> JobState:
    """Return a job that is named after its number."""
    policy = ElasticPolicy(
        min_replicas=sizes[0] if sizes else low,
        max_replicas=sizes[-1] if sizes else low if high is None else high,
        replica_increment_step=step,
        replica_discrete_values=sizes,
        graceful_shutdown_timeout_in_seconds=drain_s,
    )
    return JobState(
        number=number,
        spec=JobSpec(
            name=f"job-{number}",
            script="train.py",
            team=team,
            priority_class=priority,
            resources_per_worker=WorkerResources(devices=devices, kinds=spec.pop("kinds", ())),
            elastic_policy=policy,
            **spec,
        ),
        submitted_s=submitted_s,
        **(state or {}),
    )


def quota(pool: str, nominal: int, borrow: int | None = None, lend: int | None = None) -> Quota:
    return Quota(pool=pool, nominal_quota=nominal, borrowing_limit=borrow, lending_limit=lend)


def running(state: JobState, *, started_s: float = -1e6, **pools: int) -> JobState:
    """Return the job with these workers in each pool, running for a long time."""
    holds = tuple(Holding(pool=pool.replace("_", "-"), workers=n) for pool, n in pools.items())
    return replace(state, holds=holds, started_s=started_s, resized_s=started_s)


def by_job(made: Plan) -> dict[str, Decision]:
    return {decision.job: decision for decision in made.decisions}


# -- the rules, worked out a second time -------------------------------------------------------------------


def used(snapshot: Snapshot) -> dict[str, dict[str, int]]:
    """Return the devices by team and pool that jobs hold or have yet to give back."""
    found: dict[str, dict[str, int]] = {}
    for state in snapshot.jobs:
        mine = found.setdefault(state.spec.team, {})
        for one in (*state.holds, *state.draining):
            devices = one.workers * state.spec.worker_devices
            mine[one.pool] = mine.get(one.pool, 0) + devices
    return found


def on_pool(snapshot: Snapshot, pool: str) -> int:
    """Return the devices of the pool that jobs use, without those on leaving nodes."""
    return sum(
        (one.workers - one.leaving) * state.spec.worker_devices
        for state in snapshot.jobs
        for one in (*state.holds, *state.draining)
        if one.pool == pool
    )


def shrunk(promised: dict[str, int], capacity: int) -> dict[str, int]:
    """Promises of a pool that has fewer devices: every device promised has its turn, and the first are there.

    Of ``n`` devices promised to those with promises of one size, the first to each, then the second to each,
    the ``k``-th has its turn when ``(k - 1/2) / n`` of the pool is there.
    """
    if sum(promised.values()) <= capacity:
        return promised
    sizes = list(promised.values())
    turns = []
    for name, devices in promised.items():
        alike = [other for other, as_many in promised.items() if as_many == devices]
        for nth in range(devices):
            k = nth * len(alike) + alike.index(name) + 1
            turns.append((Fraction(2 * k - 1, 2 * devices * len(alike)), sizes.index(devices), name))
    had = Counter(name for _, _, name in sorted(turns)[:capacity])
    return {name: had[name] for name in promised}


class Nodes:
    """The quota tree of one pool, by recursion over names.

    Args:
        plain: promises keep nothing for running jobs. New workers must fit beside these as well.
    """

    def __init__(self, snapshot: Snapshot, pool: str, capacity: int, *, plain: bool = False) -> None:
        self.parent = {one.name: one.parent for one in snapshot.cohorts}
        self.parent |= {one.name: one.cohort for one in snapshot.teams}
        for state in snapshot.jobs:
            self.parent.setdefault(state.spec.team, "")
        written = {
            one.name: entry
            for one in (*snapshot.cohorts, *snapshot.teams)
            for entry in one.quotas
            if entry.pool == pool
        }
        wished = {name: entry.nominal_quota for name, entry in written.items()}
        promised = shrunk(wished, capacity)
        least = self.needed_of_own(snapshot, pool, wished)
        fixed: dict[str, int] = {}
        while not plain and sum(least.values()) <= capacity:
            short = {name for name in wished if promised[name] < least[name]} - fixed.keys()
            if not short:
                break
            fixed |= {name: least[name] for name in short}
            rest = {name: 0 if name in fixed else devices for name, devices in wished.items()}
            promised = shrunk(rest, capacity - sum(fixed.values())) | fixed
        self.children: dict[str, list[str]] = {}
        for name, parent in self.parent.items():
            self.children.setdefault(parent, []).append(name)
        self.own = {"": capacity}
        self.lend = dict.fromkeys(self.parent, math.inf)
        self.borrow = dict.fromkeys(self.parent, math.inf)
        for name in self.parent:
            entry = written.get(name, Quota(pool=pool))
            self.own[name] = promised.get(name, 0)
            self.own[""] -= self.own[name]
            if entry.lending_limit is not None:
                self.lend[name] = entry.lending_limit
            if entry.borrowing_limit is not None:
                self.borrow[name] = entry.borrowing_limit

    def needed_of_own(self, snapshot: Snapshot, pool: str, wished: dict[str, int]) -> dict[str, int]:
        """Return the part of each promise that minimums of running jobs need, the lowest node first."""
        left: Counter[str] = Counter()
        for state in snapshot.jobs:
            missing = state.spec.elastic_policy.min_replicas
            if state.ends or state.spec.run_policy.suspend:
                continue
            for holding in state.holds:
                workers = min(missing, holding.workers)
                missing -= workers
                if holding.pool == pool:
                    left[state.spec.team] += workers * state.spec.worker_devices
        found = dict.fromkeys(wished, 0)
        depth = {name: self.depth(name) for name in self.parent}
        for name in sorted(self.parent, key=lambda name: -depth[name]):
            # A cohort has no jobs of its own.
            needed = left[name]
            if name in found:
                found[name] = min(needed, wished[name])
            left[self.parent[name]] += needed - found.get(name, 0)
        return found

    def depth(self, name: str) -> int:
        return 1 + self.depth(self.parent[name]) if self.parent.get(name) else 0

    def quota(self, name: str) -> int:
        return self.own[name] + sum(self.lent(child) for child in self.children.get(name, ()))

    def lent(self, name: str) -> int:
        return min(self.quota(name), self.lend[name])

    def usage(self, name: str, of_teams: dict[str, int]) -> int:
        """Return the use of a node's own account: that of its children beyond their unlent part."""
        if name not in self.children:
            return of_teams.get(name, 0)
        return sum(
            max(0, self.usage(child, of_teams) - (self.quota(child) - self.lent(child)))
            for child in self.children[name]
        )

    def over(self, of_teams: dict[str, int]) -> set[str]:
        """Return the nodes that use more than they own and may borrow."""
        found = {
            name for name in self.parent if self.usage(name, of_teams) > self.quota(name) + self.borrow[name]
        }
        return found | ({""} if self.usage("", of_teams) > self.quota("") else set())

    def above(self, name: str) -> set[str]:
        """Return a node and the nodes above it, the cluster included."""
        return {name} | (self.above(self.parent[name]) if name else set())


def capacity(snapshot: Snapshot, pool: str) -> int:
    """Return the devices of the pool, without a calendar."""
    one = next(one for one in snapshot.pools if one.name == pool)
    return max(0, one.devices - one.leaving)


def is_unsuitable(state: JobState, pool: Pool) -> bool:
    """Return whether no worker of a job may be in a pool."""
    spec, wanted = state.spec, state.spec.resources_per_worker
    divided = spec.processes > 1
    # An agent of these pools has one worker.
    several = divided and pool.engine and spec.elastic_policy.limits[1] > 1
    too_large = spec.worker_devices > pool.devices_per_node and (divided or pool.engine)
    wrong_kind = wanted.kinds and pool.device not in wanted.kinds
    return bool(several or too_large or wrong_kind or (pool.spot and not spec.spot))


def legal(state: JobState, workers: int) -> bool:
    return workers in legal_sizes(state)


def legal_sizes(state: JobState, *, one_node: bool = False) -> list[int]:
    """Return all legal sizes, on nodes of the usual number of devices, or if all devices are on one node."""
    # The processes of a worker compute one virtual rank each at the same time.
    policy, ranks = state.spec.elastic_policy, state.virtual_ranks // state.spec.processes
    low, high = policy.min_replicas, policy.max_replicas
    if policy.replica_discrete_values:
        return list(policy.replica_discrete_values)
    if policy.replica_increment_step is not None:
        return [n for n in range(low, high + 1) if (n - low) % policy.replica_increment_step == 0]
    on_a_node = max(1, Pool(name="", device="", devices=0).devices_per_node // devices_of(state))
    sizes = [low]
    for n in range(low + 1, high + 1):
        fills_nodes = one_node or n <= on_a_node or n % on_a_node == 0 or n == ranks
        share = math.ceil(ranks / n)
        is_faster = not ranks or all(share < math.ceil(ranks / smaller) for smaller in sizes)
        if fills_nodes and is_faster:
            sizes.append(n)
    return sizes


def devices_of(state: JobState) -> int:
    return state.spec.worker_devices


def held_after(state: JobState, decision: Decision) -> tuple[Holding, ...]:
    """Return the workers after a change: dead workers leave first; a grant of more workers replaces them."""
    faulty = faulty_after(state, decision) is not None
    failed = {one.pool: one.failed - decision.drain.get(one.pool, 0) for one in state.holds}
    return tuple(
        Holding(pool=pool, workers=workers, failed=max(0, failed.get(pool, 0)) if faulty else 0)
        for pool, workers in decision.workers.items()
    )


def faulty_after(state: JobState, decision: Decision) -> float | None:
    more = decision.action in {"start", "grow", "move"}
    dead = sum(max(0, one.failed - decision.drain.get(one.pool, 0)) for one in state.holds)
    return None if more or not dead else state.faulty_since_s


# -- the cluster -------------------------------------------------------------------------------------------


@dataclass
class Cluster:
    """A cluster that carries plans out: workers come and leave after a while, and jobs do their work.

    Args:
        snapshot: for the scheduler.
        rng: of delays.
        work: worker-seconds that each job still needs; a job without an entry never ends.
    """

    snapshot: Snapshot
    rng: random.Random
    work: dict[str, float] = field(default_factory=dict)
    ended: list[str] = field(default_factory=list)
    changes: dict[str, int] = field(default_factory=dict)
    late_leavers: bool = False

    def plan(self) -> Plan:
        return plan(self.snapshot)

    def tick(self, seconds: float = TICK_S) -> Plan:
        """Make a plan, carry it out, and let time pass."""
        made = self.plan()
        self.obey(made)
        self.pass_time(seconds)
        return made

    def obey(self, made: Plan) -> None:
        decided = by_job(made)
        now_s = self.snapshot.now_s
        jobs = []
        for state in self.snapshot.jobs:
            decision = decided[state.name]
            draining = tuple(one for one in state.draining if one.deadline_s >= now_s)
            holds = {holding.pool: holding for holding in state.holds}
            for pool, workers in decision.drain.items():
                leaving = min(workers, holds[pool].leaving)
                draining += (
                    Draining(
                        pool=pool, workers=workers, leaving=leaving, deadline_s=now_s + decision.drain_s
                    ),
                )
            before = SizeHistory(
                started_s=state.started_s,
                resized_s=state.resized_s,
                setbacks=state.setbacks,
                promised=state.promised,
            )
            changed = decision.action not in AT_REST
            self.changes[state.name] = self.changes.get(state.name, 0) + changed
            jobs.append(
                replace(
                    state,
                    holds=held_after(state, decision),
                    faulty_since_s=faulty_after(state, decision),
                    draining=draining,
                    **asdict(record_decision(before, decision, now_s)),
                )
            )
        self.snapshot = replace(self.snapshot, jobs=tuple(jobs))

    def pass_time(self, seconds: float) -> None:
        now_s = self.snapshot.now_s + seconds
        jobs = []
        for state in self.snapshot.jobs:
            if state.name in self.work:
                self.work[state.name] -= state.workers * seconds
                if self.work[state.name] <= 0:
                    self.ended.append(state.name)
                    continue
            stay = (
                () if not self.late_leavers else tuple(o for o in state.draining if self.rng.random() < 0.5)
            )
            jobs.append(replace(state, draining=stay))
        self.snapshot = replace(self.snapshot, now_s=now_s, jobs=tuple(jobs))

    def submit(self, state: JobState) -> None:
        self.snapshot = replace(
            self.snapshot, jobs=(*self.snapshot.jobs, replace(state, submitted_s=self.snapshot.now_s))
        )

    def change(self, name: str, **fields) -> None:
        """Change the spec of a job."""
        self.snapshot = replace(
            self.snapshot,
            jobs=tuple(
                replace(state, spec=replace(state.spec, **fields)) if state.name == name else state
                for state in self.snapshot.jobs
            ),
        )

    def of(self, name: str) -> JobState:
        return next(state for state in self.snapshot.jobs if state.name == name)
