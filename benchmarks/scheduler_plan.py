"""Measure how long one plan takes, for clusters of 1,000 to 100,000 jobs with ten devices each, in 50 teams.

Each size is measured in a process of its own, on four snapshots. In ``cold`` every job waits.
In ``busy``, some plans later, nothing happens. In ``changed`` one job in a hundred has since
ended or come, and one pool has lost a tenth of its nodes. ``refused`` is another cluster: half the
jobs have grown, and the other half would not fit if these gave back everything. Prints one JSON object per
size.

``--odd`` measures two other snapshots, which cost more. In ``displaced`` the better half of the jobs comes
when the other half has all that its cohort owns. In ``cut`` 50 teams own a twentieth of the devices that
their jobs run on.
"""

import argparse
import gc
import json
import random
import subprocess
import sys
import time
from pathlib import Path
from statistics import median
from typing import Any

import msgspec
from elastane.cluster.nouns.cluster import Holding, JobState, Snapshot
from elastane.cluster.nouns.config import Cohort, PriorityClass, Quota, Team
from elastane.cluster.nouns.jobs import ElasticPolicy, JobSpec, WorkerResources
from elastane.cluster.nouns.plans import Plan
from elastane.cluster.nouns.pools import Pool
from elastane.cluster.scheduler.plan import plan

SIZES = (1_000, 3_000, 10_000, 30_000, 100_000)
TEAMS, COHORTS = 50, 8
DEVICES_PER_JOB = 10
ODD_LARGEST = 10_000
PLANS_TO_REST = 4


def make_cluster(jobs: int, seed: int) -> Snapshot:
    """Return a cluster with a demand of about twice its devices, with spot and two kinds of devices."""
    rng = random.Random(seed)
    devices = jobs * DEVICES_PER_JOB
    pools = (
        Pool(name="h100", device="h100", devices=devices // 2, price=3.0),
        Pool(name="h100-spot", device="h100", devices=devices // 5, price=1.0, spot=True),
        Pool(name="a100", device="a100", devices=devices - devices // 2 - devices // 5, price=1.5),
    )
    owned = [pool for pool in pools if not pool.spot]
    teams = tuple(
        Team(
            name=f"team-{i}",
            cohort=f"cohort-{i % COHORTS}",
            quotas=tuple(Quota(pool=pool.name, nominal_quota=pool.devices // TEAMS) for pool in owned),
            weight=rng.choice([1.0, 1.0, 2.0]),
        )
        for i in range(TEAMS)
    )
    return Snapshot(
        now_s=0.0,
        pools=pools,
        teams=teams,
        cohorts=tuple(Cohort(name=f"cohort-{i}") for i in range(COHORTS)),
        priorities=(PriorityClass(name="high", value=10), PriorityClass(name="low", value=-10)),
        jobs=tuple(draw_job(rng, number, 0.0) for number in range(jobs)),
    )


def make_refused(jobs: int) -> Snapshot:
    """Return a cluster of one cohort: teams have grown to their limits, and waiting jobs need too much."""
    of_each = jobs // 2 // TEAMS
    borrowed = 2 * of_each * DEVICES_PER_JOB
    grown = ElasticPolicy(min_replicas=1, max_replicas=2 * DEVICES_PER_JOB)
    # One worker more than remains when all jobs of the team have shrunk to one.
    large = ElasticPolicy(min_replicas=borrowed - of_each + 1, max_replicas=borrowed)
    holds = (Holding(pool="h100", workers=grown.max_replicas),)

    def state(number: int, policy: ElasticPolicy) -> JobState:
        spec = JobSpec(
            name=f"job-{number}", script="train.py", team=f"team-{number % TEAMS}", elastic_policy=policy
        )
        return JobState(number=number, spec=spec, submitted_s=0.0)

    running = [
        msgspec.structs.replace(state(number, grown), holds=holds, started_s=-86400.0)
        for number in range(of_each * TEAMS)
    ]
    waiting = [state(number, large) for number in range(len(running), 2 * len(running))]
    limit = Quota(pool="h100", borrowing_limit=borrowed)
    return Snapshot(
        now_s=0.0,
        pools=(Pool(name="h100", device="h100", devices=borrowed * TEAMS),),
        teams=tuple(Team(name=f"team-{i}", cohort="all", quotas=(limit,)) for i in range(TEAMS)),
        cohorts=(Cohort(name="all", quotas=(Quota(pool="h100", nominal_quota=borrowed * TEAMS),)),),
        jobs=(*running, *waiting),
    )


def make_displaced(jobs: int) -> Snapshot:
    """Return a cluster in which half of the teams own a part, and waiting jobs have the higher priority."""
    running = [
        make_running_job(number, f"team-{TEAMS // 2 + number % (TEAMS // 2)}", 10, "low")
        for number in range(jobs // 2)
    ]
    waiting = [
        make_waiting_job(number, f"team-{number % TEAMS}", 11 + number % 5, "high")
        for number in range(jobs // 2, jobs)
    ]
    owned = Quota(pool="h100", nominal_quota=jobs * DEVICES_PER_JOB // TEAMS)
    teams = [Team(name=f"team-{i}", cohort="all", quotas=(owned,) * (i < TEAMS // 2)) for i in range(TEAMS)]
    rest = Quota(pool="h100", nominal_quota=jobs * DEVICES_PER_JOB // 2)
    return make_snapshot(
        jobs * DEVICES_PER_JOB, teams, (*running, *waiting), Cohort(name="all", quotas=(rest,))
    )


def make_cut(jobs: int) -> Snapshot:
    """Return a cluster in which each team owns a part of a minimum; one owns the rest and lends nothing."""
    devices = 2 * DEVICES_PER_JOB * jobs
    left = Quota(pool="h100", nominal_quota=jobs // TEAMS)
    others = Quota(pool="h100", nominal_quota=devices - TEAMS * (jobs // TEAMS), lending_limit=0)
    teams = [Team(name=f"team-{i}", quotas=(left,)) for i in range(TEAMS)]
    running = tuple(make_running_job(number, f"team-{number % TEAMS}", 18, "low") for number in range(jobs))
    return make_snapshot(devices, [*teams, Team(name="others", quotas=(others,))], running)


def make_waiting_job(number: int, team: str, least: int, priority: str) -> JobState:
    policy = ElasticPolicy(min_replicas=least, max_replicas=2 * DEVICES_PER_JOB)
    spec = JobSpec(
        name=f"job-{number}", script="train.py", team=team, elastic_policy=policy, priority_class=priority
    )
    return JobState(number=number, spec=spec, submitted_s=-60.0)


def make_running_job(number: int, team: str, least: int, priority: str) -> JobState:
    """Return a job that has run at its largest size for a day."""
    holds = (Holding(pool="h100", workers=2 * DEVICES_PER_JOB),)
    return msgspec.structs.replace(
        make_waiting_job(number, team, least, priority), holds=holds, started_s=-86400.0
    )


def make_snapshot(devices: int, teams: list[Team], jobs: tuple[JobState, ...], *cohorts: Cohort) -> Snapshot:
    return Snapshot(
        now_s=0.0,
        pools=(Pool(name="h100", device="h100", devices=devices),),
        teams=tuple(teams),
        cohorts=cohorts,
        priorities=(PriorityClass(name="low", value=0), PriorityClass(name="high", value=1)),
        jobs=jobs,
    )


def draw_job(rng: random.Random, number: int, now_s: float) -> JobState:
    devices = rng.choice([1, 1, 1, 2, 4, 8])
    minimum = rng.choice([1, 1, 2, 4])
    step = rng.choice([1, 1, 1, 2])
    speed = rng.uniform(1, 100)
    return JobState(
        number=number,
        spec=JobSpec(
            name=f"job-{number}",
            script="train.py",
            team=f"team-{int(TEAMS * rng.random() ** 2)}",
            priority_class=rng.choice(["", "", "", "high", "low"]),
            resources_per_worker=WorkerResources(
                devices=devices, kinds=rng.choice([(), ("h100",), ("a100", "h100"), ("h100", "a100")])
            ),
            elastic_policy=ElasticPolicy(
                min_replicas=minimum,
                max_replicas=minimum + step * rng.choice([0, 3, 7, 15, 63]),
                replica_increment_step=step,
            ),
            borrow=rng.random() < 0.9,
            spot=rng.random() < 0.5,
        ),
        submitted_s=now_s,
        speeds=((1, speed), (4, speed * 4 * rng.uniform(0.7, 1.0))),
    )


def advance(snapshot: Snapshot, made: Plan, seconds: float) -> Snapshot:
    """Return the cluster after all decisions of the plan."""
    decided = {decision.job: decision for decision in made.decisions}
    now_s = snapshot.now_s + seconds
    return msgspec.structs.replace(
        snapshot,
        now_s=now_s,
        jobs=tuple(
            msgspec.structs.replace(
                state,
                holds=tuple(Holding(pool=pool, workers=n) for pool, n in decided[state.name].workers.items()),
                started_s=now_s if decided[state.name].action == "start" else state.started_s,
                resized_s=now_s if decided[state.name].action not in ("keep", "wait") else state.resized_s,
            )
            for state in snapshot.jobs
        ),
    )


def disturb(snapshot: Snapshot, seed: int) -> Snapshot:
    rng = random.Random(seed)
    stay = [state for state in snapshot.jobs if rng.random() > 0.01]
    come = range(len(snapshot.jobs), 2 * len(snapshot.jobs) - len(stay))
    first, *others = snapshot.pools
    return msgspec.structs.replace(
        snapshot,
        jobs=(*stay, *(draw_job(rng, number, snapshot.now_s) for number in come)),
        pools=(msgspec.structs.replace(first, devices=first.devices * 9 // 10), *others),
    )


def make_usual_snapshots(jobs: int, seed: int) -> dict[str, Snapshot]:
    snapshot = cold = make_cluster(jobs, seed)
    for _ in range(PLANS_TO_REST):
        snapshot = advance(snapshot, plan(snapshot), 120.0)
    changed = disturb(snapshot, seed)
    return {"cold": cold, "busy": snapshot, "changed": changed, "refused": make_refused(jobs)}


def measure(jobs: int, snapshots: dict[str, Snapshot], repetitions: int) -> dict[str, Any]:
    found: dict[str, Any] = {"jobs": jobs, "devices": jobs * DEVICES_PER_JOB}
    for name, one in snapshots.items():
        seconds = []
        for _ in range(repetitions):
            # As in the process that plans: see `elastane.cluster.controller.planner`.
            gc.collect()
            gc.disable()
            begin_s = time.process_time()
            made = plan(one)
            seconds.append(time.process_time() - begin_s)
            gc.enable()
        actions = [decision.action for decision in made.decisions]
        found[name] = {
            "cpu_s": {"median": median(seconds), "lowest": min(seconds), "highest": max(seconds)},
            "actions": {action: actions.count(action) for action in sorted(set(actions))},
        }
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, help="measure this size here, instead of all sizes")
    parser.add_argument("--largest", type=int, default=SIZES[-1])
    parser.add_argument("--odd", action="store_true", help="what costs more; up to 10,000 jobs")
    parser.add_argument("--repetitions", type=int, default=7)
    parser.add_argument("--seed", type=int, default=7)
    options = parser.parse_args()
    if options.jobs is not None:
        odd = {"displaced": make_displaced, "cut": make_cut}
        snapshots = (
            {name: made(options.jobs) for name, made in odd.items()}
            if options.odd
            else make_usual_snapshots(options.jobs, options.seed)
        )
        print(json.dumps(measure(options.jobs, snapshots, options.repetitions)), flush=True)
        return
    largest = min(options.largest, ODD_LARGEST) if options.odd else options.largest
    for jobs in SIZES:
        if jobs <= largest:
            command = [sys.executable, str(Path(__file__)), "--jobs", str(jobs), *["--odd"] * options.odd]
            command += ["--repetitions", str(options.repetitions), "--seed", str(options.seed)]
            subprocess.run(command, check=True)


if __name__ == "__main__":
    main()
