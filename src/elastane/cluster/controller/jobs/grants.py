"""The grant of a job: the workers that a decision of the plan gives to it, and their pools. Pure."""

from collections.abc import Mapping

import msgspec

from elastane.cluster.controller.jobs.size_history import is_preempted, record_decision
from elastane.cluster.controller.jobs.stored_job import SizeReason, StoredJob
from elastane.cluster.nouns.job_records import Grant, HeldWorkers, ObservedJob
from elastane.cluster.nouns.plans import Decision


def apply_decision(job: StoredJob, decision: Decision, reason: SizeReason, now_s: float) -> StoredJob:
    """Return a job that is alive with the size of a decision, which changes it."""
    grant = Grant(workers=decision.workers, drain_until_s=now_s + decision.drain_s if decision.drain else 0.0)
    workers = sum(grant.workers.values())
    observed = _expect_workers(job, grant, now_s)
    sizes = record_decision(job.size_history, decision, now_s)
    return msgspec.structs.replace(
        job,
        grant=grant,
        observed=observed,
        workers=workers,
        # A job that gives everything back runs until an observation says that its workers are gone.
        state="running" if workers or observed.held else job.state,
        reason=reason,
        started_s=job.started_s if job.started_s is not None or not workers else now_s,
        admitted_s=sizes.started_s,
        resized_s=sizes.resized_s,
        setbacks=sizes.setbacks,
        promised=sizes.promised,
        resizes=job.resizes + (1 if job.workers and workers else 0),
        preemptions=job.preemptions + is_preempted(decision),
    )


def _expect_workers(job: StoredJob, grant: Grant, now_s: float) -> ObservedJob:
    """Return the workers that the job may hold until it is observed, and since when some are expected."""
    seen = job.observed.held
    counts = count_held({pool: part.workers for pool, part in seen.items()}, job.grant.workers, grant.workers)
    held = {
        pool: _set_workers(seen.get(pool, HeldWorkers(workers=0)), workers)
        for pool, workers in counts.items()
    }
    total, granted = sum(grant.workers.values()), sum(job.grant.workers.values())
    came = sum(part.workers - part.absent + part.lost for part in seen.values())
    grows = total > sum(part.workers for part in held.values())
    # If workers that never arrived are given back, the replacement of a dead worker gets time of its own.
    anew = grows or (job.observed.starting_since_s is not None and total <= came < granted)
    return msgspec.structs.replace(
        job.observed, held=held, starting_since_s=now_s if anew else job.observed.starting_since_s
    )


def _set_workers(seen: HeldWorkers, workers: int) -> HeldWorkers:
    """Return the holding with this many workers; those that were not observed count as absent."""
    return msgspec.structs.replace(seen, workers=workers, absent=seen.absent + workers - seen.workers)


def assign_pools(workers: int, granted: Mapping[str, int], before: Mapping[str, int]) -> dict[str, int]:
    """Assign workers to pools: those granted, and those at the last observation.

    Workers stay in their pool if the grant allows it. The next ones go where the grant has more, and only the
    rest stays where it was, because it is leaving: on one machine, pools are only names.
    """
    found: dict[str, int] = {}
    left = workers

    def put(pool: str, most: int) -> None:
        nonlocal left
        here = min(most, left)
        if here > 0:
            found[pool] = found.get(pool, 0) + here
            left -= here

    for pool, most in granted.items():
        put(pool, min(most, before.get(pool, 0)))
    for pool, most in granted.items():
        put(pool, most - found.get(pool, 0))
    for pool, some in before.items():
        put(pool, some - found.get(pool, 0))
    for pool in (*granted, *before):
        # More workers than known: one is leaving and its replacement has arrived.
        put(pool, left)
    return found


def count_held(held: dict[str, int], granted: dict[str, int], given: dict[str, int]) -> dict[str, int]:
    """Return the workers that count as held, by pool, once the grant changes from ``granted`` to ``given``.

    The engine may have received the old grant. So if any pool shrinks, the whole old grant counts as held
    until an observation says otherwise, also in pools that keep their part: an engine counts workers, not
    pools.
    """
    if all(given.get(pool, 0) >= workers for pool, workers in granted.items()):
        return dict(held)
    return {pool: max(held.get(pool, 0), granted.get(pool, 0)) for pool in held | granted}
