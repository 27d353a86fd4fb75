"""Random clusters and jobs from a seed: drawing each number by hypothesis would cost much more."""

import random
from datetime import UTC, datetime

from elastane.cluster.nouns.cluster import JobState, Snapshot
from elastane.cluster.nouns.config import Cohort, PriorityClass, Quota, SchedulingRules, Team
from elastane.cluster.nouns.jobs import JobTarget
from elastane.cluster.nouns.pools import Pool

from .scheduler_model import job, quota, replace

PRIORITIES = (PriorityClass(name="high", value=10), PriorityClass(name="low", value=-10))


def quotas(rng: random.Random, names: list[str], most: int) -> tuple[Quota, ...]:
    limits = [None, None, 0, 2, most]
    return tuple(
        quota(name, rng.randint(0, most), rng.choice(limits), rng.choice(limits))
        for name in names
        if rng.random() < 0.6
    )


def empty_cluster(rng: random.Random, *, limits: bool = True, plain: bool = False) -> Snapshot:
    """Return pools, teams and cohorts without jobs; without ``limits`` there is no quota.

    A ``plain`` one has one pool, and teams without cohorts.
    """
    pools = [Pool(name="a", device="h100", devices=rng.randint(1, 24))]
    if rng.random() < 0.5 and not plain:
        pools.append(Pool(name="b", device="a100", devices=rng.randint(1, 16), price=0.5))
    if rng.random() < 0.5 and not plain:
        pools.append(Pool(name="s", device="h100", devices=rng.randint(1, 16), spot=True))
    names = [pool.name for pool in pools] if limits else []
    cohorts = [
        Cohort(name=f"c{i}", quotas=quotas(rng, names, 6)) for i in range(0 if plain else rng.randint(0, 2))
    ]
    if len(cohorts) == 2 and rng.random() < 0.5:
        cohorts[1] = Cohort(name="c1", parent="c0", quotas=cohorts[1].quotas)
    teams = tuple(
        Team(
            name=f"t{i}",
            cohort=rng.choice(["", *(one.name for one in cohorts)]),
            quotas=quotas(rng, names, 12),
            weight=rng.choice([0.5, 1.0, 3.0]),
        )
        for i in range(rng.randint(1, 3))
    )
    return Snapshot(
        now_s=0.0,
        pools=tuple(pools),
        teams=teams,
        cohorts=tuple(cohorts),
        priorities=PRIORITIES,
        rules=SchedulingRules(),
    )


def some_job(rng: random.Random, number: int, *, odd: bool = True) -> JobState:
    """Return one job; an ``odd`` one may have any sizes, and workers of several devices or processes."""
    processes = rng.choice([1, 1, 1, 2, 4, 8]) if odd else 1
    low = rng.randint(1, 4)
    step = rng.choice([None, None, 1, 2, 3]) if odd else 1
    sizes = tuple(sorted(rng.sample(range(1, 13), rng.randint(1, 4)))) if odd and rng.random() < 0.3 else ()
    speed = rng.uniform(1, 100)
    return job(
        number,
        rng.choice(["t0", "t1", "t2"]),
        low=low,
        high=low + (step or 1) * rng.choice([0, 1, 2, 6, 20]),
        step=step,
        sizes=sizes,
        processes=processes,
        devices=None if processes > 1 else rng.choice([1, 1, 2, 4]) if odd else 1,
        priority=rng.choice(["", "", "high", "low"]),
        borrow=rng.random() < 0.75,
        spot=rng.random() < 0.5,
        kinds=rng.choice([(), ("h100",), ("a100", "h100")]),
        state={
            "speeds": rng.choice([(), ((1, speed), (4, 4 * speed * rng.uniform(0.3, 1.1)))]),
            "remaining": rng.choice([None, rng.uniform(0, 1e6)]),
            "trained": rng.uniform(0, 1e6),
            "virtual_ranks": rng.choice([0, 0, 8, 12, 30, 64]) if odd else 0,
            "resize_s": rng.choice([0.0, 1.0, 30.0]),
            "unsaved_s": rng.uniform(0, 100),
        },
    )


def aiming_job(rng: random.Random, number: int, *, price: float) -> JobState:
    """Return a job with a target, a deadline in a hundred hours or a budget that some size of it meets.

    Args:
        rng: source of randomness.
        number: of the job.
        price: of a device and hour.
    """
    state = some_job(rng, number)
    undivided = rng.choice([0.0, 0.01, 0.1])

    def compute_speed(workers: float) -> float:
        return workers / (1.0 + undivided * workers)

    policy, devices = state.spec.elastic_policy, state.spec.worker_devices
    wanted = rng.uniform(policy.min_replicas, policy.max_replicas)
    state = replace(state, speeds=tuple((n, compute_speed(n)) for n in {1, 4, policy.max_replicas}))
    far_s = 360_000.0
    match rng.choice(["throughput", "deadline", "budget"]):
        case "throughput":
            return replace(
                state, spec=replace(state.spec, target=JobTarget(throughput=compute_speed(wanted)))
            )
        case "deadline":
            spec = replace(state.spec, deadline=datetime.fromtimestamp(far_s, UTC))
            return replace(state, spec=spec, remaining=far_s * compute_speed(wanted))
        case _:
            budget = far_s * price * devices / 3600 * (1.0 + undivided * wanted)
            return replace(state, spec=replace(state.spec, budget=budget), remaining=far_s)
