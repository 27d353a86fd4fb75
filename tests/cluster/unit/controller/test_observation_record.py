"""The stored part of an observation."""

import msgspec

from elastane.cluster.controller.jobs.lifecycle import apply_observation, read_lifecycle
from elastane.cluster.controller.jobs.observation_record import record_observation
from elastane.cluster.controller.jobs.stored_job import StoredJob
from elastane.cluster.nouns.engine import Observation
from elastane.cluster.nouns.job_records import Grant, HeldWorkers, ObservedJob
from elastane.cluster.nouns.jobs import ElasticPolicy, JobSpec
from elastane.run.nouns.attempts import AttemptOutcome
from tests.cluster.stored_jobs import make_stored_job

SPEC = JobSpec(name="j", team="t", script="/train.py", elastic_policy=ElasticPolicy(max_replicas=8))
JOB = make_stored_job(
    SPEC,
    step=7,
    observed=ObservedJob(seen_s=9.0, held={"p": HeldWorkers(workers=3)}),
    run_dir="/runs/j",
    active_s=8.0,
    active_since_s=1.0,
)


def after(seen: Observation, job: StoredJob = JOB, now_s: float = 10.0) -> StoredJob:
    return record_observation(job, apply_observation(read_lifecycle(job), seen, now_s), seen, now_s)


def living(workers: int | None) -> Observation:
    return Observation(job="j", attempt=1, present=True, agent=True, workers=workers, target=workers)


def missing_since(found: StoredJob) -> tuple[float | None, float | None]:
    return found.observed.starting_since_s, found.observed.faulty_since_s


def test_fewer_workers_than_before_are_a_fault() -> None:
    assert missing_since(after(living(2))) == (None, 10.0)


def growing(target: int, members: int | None, **how: bool) -> Observation:
    return Observation(
        job="j", attempt=1, present=True, agent=True, workers=target, members=members, target=target, **how
    )


GROWN = msgspec.structs.replace(
    JOB,
    grant=Grant(workers={"p": 3, "q": 5}),
    observed=msgspec.structs.replace(JOB.observed, starting_since_s=4.0),
)


def test_processes_hold_devices_and_only_members_count_as_arrived() -> None:
    found = after(growing(8, 4), GROWN)
    assert found.observed.held == {"p": HeldWorkers(workers=3), "q": HeldWorkers(workers=5, absent=4)}
    assert missing_since(found) == (4.0, None)
    assert missing_since(after(growing(8, 8), GROWN)) == (None, None)


def test_before_training_begins_every_process_counts_as_arrived() -> None:
    assert missing_since(after(growing(8, 0), GROWN)) == (None, None)


def test_the_successor_of_a_dead_worker_is_expected_from_the_death_on() -> None:
    dead = after(growing(2, 2))
    assert missing_since(dead) == (None, 10.0)
    job = msgspec.structs.replace(JOB, observed=dead.observed)
    assert missing_since(after(growing(3, 2), job, 11.0)) == (10.0, None)


def then(found: StoredJob, seen: Observation, now_s: float, job: StoredJob = GROWN) -> StoredJob:
    """Return the job after another observation."""
    return after(seen, msgspec.structs.replace(job, observed=found.observed), now_s)


def test_a_death_while_others_are_expected_is_a_separate_fault() -> None:
    waits = after(growing(8, 3), GROWN)
    dead = then(waits, msgspec.structs.replace(growing(8, 2), workers=7), 11.0)
    assert missing_since(dead) == (4.0, 11.0)
    assert dead.observed.held == {
        "p": HeldWorkers(workers=3, absent=1, lost=1),
        "q": HeldWorkers(workers=5, absent=5),
    }
    again = then(dead, msgspec.structs.replace(growing(8, 2), workers=7), 12.0)
    assert missing_since(again) == (4.0, 11.0)
    succeeded = then(again, growing(8, 2), 13.0)
    assert missing_since(succeeded) == (4.0, None)
    assert sum(one.lost for one in succeeded.observed.held.values()) == 1
    back = then(succeeded, growing(8, 3), 14.0)
    assert missing_since(back) == (4.0, None)
    assert back.observed.held == waits.observed.held


def test_a_chain_of_dying_successors_is_late_since_the_first_death() -> None:
    dead = after(growing(2, 2))
    succeeded = then(dead, growing(3, 2), 11.0, JOB)
    assert missing_since(then(succeeded, growing(2, 2), 12.0, JOB)) == (10.0, None)


def test_without_a_count_of_members_every_process_counts_as_arrived() -> None:
    found = after(growing(8, None), GROWN)
    assert found.observed.held == {"p": HeldWorkers(workers=3), "q": HeldWorkers(workers=5)}


def test_while_no_agent_answers_the_number_of_arrived_workers_stays() -> None:
    half = msgspec.structs.replace(GROWN, observed=after(growing(8, 4), GROWN).observed)
    assert after(living(None), half, 11.0).observed.held == half.observed.held


def test_no_worker_is_missing_while_the_controller_cannot_change_their_number() -> None:
    assert missing_since(after(growing(2, 2, fixed=True), GROWN)) == (None, None)


def test_uncounted_workers_are_neither_missing_nor_back() -> None:
    assert missing_since(after(living(None))) == (None, None)


def test_the_workers_of_the_next_attempt_are_expected_without_a_fault() -> None:
    """Only one timeout runs: that of a fault, or that of its replacements."""
    killed = Observation(job="j", attempt=1)
    found = after(killed)
    assert (found.attempts, found.crashes) == (1, 1)
    assert missing_since(found) == (found.retry_at_s, None)


def test_the_workers_of_the_next_attempt_are_expected_from_its_retry_time_on() -> None:
    """Even after many attempts that ended before any worker arrived."""
    expecting = msgspec.structs.replace(JOB.observed, held={}, starting_since_s=4.0)
    job = msgspec.structs.replace(JOB, observed=expecting, attempts=1)
    crashed = Observation(job="j", attempt=2, outcome=AttemptOutcome(code=255))
    found = after(crashed, job)
    assert found.retry_at_s > 10.0
    assert missing_since(found) == (found.retry_at_s, None)
    waits = msgspec.structs.replace(
        job, observed=found.observed, attempts=2, crashes=1, retry_at_s=found.retry_at_s
    )
    assert missing_since(after(crashed, waits, 11.0)) == (found.retry_at_s, None)
    assert missing_since(after(crashed, waits, 99.0)) == (found.retry_at_s, None)
    assert missing_since(after(msgspec.structs.replace(living(3), attempt=2), job)) == (None, None)


def test_excess_workers_count_from_the_time_without_a_pending_order() -> None:
    aims, told, silent = living(4), msgspec.structs.replace(living(4), target=3), living(None)
    holds = msgspec.structs.replace(JOB, observed=ObservedJob(held={"p": HeldWorkers(workers=4)}))
    assert after(aims, holds).observed.beyond_since_s is None
    assert after(told, holds).observed.beyond_since_s == 10.0
    assert after(silent, holds).observed.beyond_since_s == 10.0
    assert after(msgspec.structs.replace(told, fixed=True), holds).observed.beyond_since_s is None
    since = msgspec.structs.replace(
        JOB, observed=ObservedJob(held={"p": HeldWorkers(workers=4)}, beyond_since_s=7.0)
    )
    assert after(told, since).observed.beyond_since_s == 7.0
    assert after(aims, since).observed.beyond_since_s is None
    assert after(living(3), since).observed.beyond_since_s is None
