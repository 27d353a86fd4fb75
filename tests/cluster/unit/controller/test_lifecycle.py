"""The effect of an observation on the lifecycle of a job."""

import msgspec
import pytest

from elastane.cluster.controller.jobs.lifecycle import JobEnd, JobLifecycle, apply_observation
from elastane.cluster.nouns.engine import Observation
from elastane.cluster.nouns.jobs import ElasticPolicy, JobSpec, RunPolicy
from elastane.run.nouns.attempts import AttemptOutcome
from tests.cluster.job_lifecycles import cancel_lifecycle, grant_workers

SPEC = JobSpec(
    name="j",
    team="t",
    script="/train.py",
    elastic_policy=ElasticPolicy(max_replicas=8),
    run_policy=RunPolicy(job_max_retry_count=2),
)
LIFECYCLE = JobLifecycle(job="j", spec=SPEC, granted=2)


def ended(attempt: int, code: int, **words: str) -> Observation:
    return Observation(job="j", attempt=attempt, outcome=AttemptOutcome(code=code, **words))


def living(attempt: int, workers: int | None, target: int | None) -> Observation:
    return Observation(job="j", attempt=attempt, present=True, agent=True, workers=workers, target=target)


def test_a_job_that_has_made_all_its_steps_has_finished() -> None:
    after = apply_observation(LIFECYCLE, ended(1, 0, why="all 30 steps are made"), 5.0)
    assert after.ended == JobEnd("finished", "all 30 steps are made")
    assert after.uses == 0


def test_a_cancelled_job_that_finishes_first_has_finished() -> None:
    after = apply_observation(cancel_lifecycle(LIFECYCLE, 4.0), ended(1, 0), 5.0)
    assert after.ended == JobEnd("finished")


def test_an_error_of_the_script_ends_the_job_with_its_traceback() -> None:
    after = apply_observation(LIFECYCLE, ended(1, 1, why="worker 0 failed", traceback="Traceback ..."), 5.0)
    assert after.ended == JobEnd("failed", "worker 0 failed", "Traceback ...")


@pytest.mark.parametrize(("code", "final"), [(1, True), (127, True), (128, False), (255, False)])
def test_exit_codes_up_to_127_are_final(code: int, final: bool) -> None:
    after = apply_observation(LIFECYCLE, ended(1, code), 5.0)
    assert (after.ended is not None) == final
    assert after.crashes == (0 if final else 1)


def test_an_attempt_without_an_outcome_is_followed_by_another() -> None:
    after = apply_observation(LIFECYCLE, Observation(job="j", attempt=1), 5.0)
    assert after.ended is None
    assert (after.over, after.crashes, after.granted) == (1, 1, 2)
    assert after.retry_at_s > 5.0


def test_nothing_is_judged_while_any_process_is_left() -> None:
    lingering = msgspec.structs.replace(ended(1, 0), present=True)
    assert apply_observation(LIFECYCLE, lingering, 5.0).over == 0


def test_a_job_fails_after_its_last_retry() -> None:
    lifecycle = LIFECYCLE
    for attempt in (1, 2):
        lifecycle = apply_observation(lifecycle, ended(attempt, 137), 5.0)
        assert lifecycle.ended is None
    lifecycle = apply_observation(lifecycle, ended(3, 137, why="gone"), 5.0)
    assert lifecycle.ended == JobEnd("failed", "3 crashes, and jobMaxRetryCount is 2; the last: gone")
    assert lifecycle.uses == 0


def test_the_wait_grows_with_every_crash() -> None:
    spec = msgspec.structs.replace(SPEC, run_policy=RunPolicy(job_max_retry_count=100))
    lifecycle, waits = msgspec.structs.replace(LIFECYCLE, spec=spec), []
    for attempt in range(1, 12):
        lifecycle = apply_observation(lifecycle, ended(attempt, 137), 0.0)
        waits.append(lifecycle.retry_at_s)
    assert waits == sorted(waits)
    assert waits[0] < waits[-1] == 300.0


def test_a_job_with_thousands_of_crashes_is_retried() -> None:
    """An error in this computation would stop the cycles of the controller for all jobs."""
    spec = msgspec.structs.replace(SPEC, run_policy=RunPolicy(job_max_retry_count=10**6))
    lifecycle = msgspec.structs.replace(LIFECYCLE, spec=spec, over=5000, crashes=5000)
    assert apply_observation(lifecycle, ended(5001, 137), 7.0).retry_at_s == 307.0


def test_preemptions_pauses_and_stops_do_not_count_as_crashes() -> None:
    lifecycle = LIFECYCLE
    for attempt in range(1, 20):
        lifecycle = apply_observation(
            grant_workers(lifecycle, 0, 5.0), ended(attempt, 137 if attempt % 2 else 130), 6.0
        )
        assert lifecycle.ended is None
        lifecycle = grant_workers(lifecycle, 2, 7.0)
    lifecycle = apply_observation(lifecycle, ended(20, 130, why="stopped by hand"), 8.0)
    assert (lifecycle.ended, lifecycle.crashes, lifecycle.over) == (None, 0, 20)


def test_a_running_job_is_cancelled_once_its_processes_are_gone() -> None:
    lifecycle = cancel_lifecycle(LIFECYCLE, 4.0)
    lifecycle = apply_observation(lifecycle, living(1, 2, 2), 5.0)
    assert (lifecycle.ended, lifecycle.uses) == (None, 2)
    lifecycle = apply_observation(lifecycle, ended(1, 130), 6.0)
    assert (lifecycle.ended, lifecycle.uses) == (JobEnd("cancelled"), 0)


def test_a_job_that_is_cancelled_before_it_began_is_cancelled_at_once() -> None:
    lifecycle = apply_observation(
        cancel_lifecycle(JobLifecycle(job="j", spec=SPEC), 4.0), Observation(job="j"), 5.0
    )
    assert lifecycle.ended == JobEnd("cancelled")


TARGET = JobEnd("finished", "its loss has reached its target")


def test_a_job_that_stopped_at_its_target_has_finished_and_one_that_failed_there_has_failed() -> None:
    lifecycle = msgspec.structs.replace(LIFECYCLE, granted=0, ending=TARGET)
    assert apply_observation(lifecycle, living(1, 2, 2), 5.0).ended is None
    assert apply_observation(lifecycle, ended(1, 130, why="stopped"), 6.0).ended == TARGET
    error = apply_observation(lifecycle, ended(1, 1, why="ValueError", traceback="Traceback"), 6.0)
    assert error.ended == JobEnd("failed", "ValueError", "Traceback")


def test_the_reason_of_an_end_tells_of_an_unclean_stop() -> None:
    lifecycle = msgspec.structs.replace(LIFECYCLE, granted=0, ending=TARGET)
    after = apply_observation(lifecycle, ended(1, 137, why="killed"), 6.0)
    assert after.ended == JobEnd(
        "finished", "its loss has reached its target; its last attempt did not stop cleanly: killed"
    )
    assert after.crashes == 0


def test_a_shrink_frees_only_workers_that_are_gone() -> None:
    lifecycle = apply_observation(msgspec.structs.replace(LIFECYCLE, granted=4), living(1, 4, 4), 5.0)
    lifecycle = grant_workers(lifecycle, 2, 6.0)
    assert lifecycle.uses == 4
    assert apply_observation(lifecycle, living(1, 4, 2), 7.0).uses == 4
    assert apply_observation(lifecycle, living(1, 3, 2), 8.0).uses == 3
    assert apply_observation(lifecycle, living(1, 2, 2), 9.0).uses == 2


def test_an_agent_that_replaces_a_dead_worker_holds_its_target() -> None:
    lifecycle = apply_observation(msgspec.structs.replace(LIFECYCLE, granted=4), living(1, 4, 4), 5.0)
    assert apply_observation(grant_workers(lifecycle, 2, 6.0), living(1, 3, 4), 7.0).uses == 4


def test_unknown_workers_stay_held() -> None:
    lifecycle = grant_workers(apply_observation(LIFECYCLE, living(1, 2, 2), 5.0), 0, 6.0)
    assert apply_observation(lifecycle, living(1, None, None), 7.0).uses == 2


def test_granted_workers_that_were_never_observed_stay_held() -> None:
    lifecycle = grant_workers(LIFECYCLE, 0, 5.0)
    assert lifecycle.uses == 2
    assert apply_observation(lifecycle, Observation(job="j", present=True), 6.0).uses == 2
    assert apply_observation(lifecycle, Observation(job="j"), 7.0).uses == 0
