"""What an observation means for a job."""

import msgspec
import pytest

from elastane.api.attempts import AttemptOutcome
from elastane.api.jobs import ElasticPolicy, JobSpec, RunPolicy
from elastane.api.observations import Observation
from elastane.controller.jobs.lifecycle import JobEnd, JobLifecycle, apply_observation
from tests.courses import cancelling, granting

SPEC = JobSpec(
    name="j",
    team="t",
    script="/train.py",
    elastic_policy=ElasticPolicy(max_replicas=8),
    run_policy=RunPolicy(job_max_retry_count=2),
)
COURSE = JobLifecycle(job="j", spec=SPEC, granted=2)


def ended(attempt: int, code: int, **words: str) -> Observation:
    return Observation(job="j", attempt=attempt, outcome=AttemptOutcome(code=code, **words))


def living(attempt: int, workers: int | None, target: int | None) -> Observation:
    return Observation(job="j", attempt=attempt, present=True, agent=True, workers=workers, target=target)


def test_a_job_whose_steps_are_all_made_has_finished() -> None:
    after = apply_observation(COURSE, ended(1, 0, why="all 30 steps are made"), 5.0)
    assert after.ended == JobEnd("finished", "all 30 steps are made")
    assert after.uses == 0


def test_a_job_that_finishes_although_it_is_cancelled_has_finished() -> None:
    after = apply_observation(cancelling(COURSE, 4.0), ended(1, 0), 5.0)
    assert after.ended == JobEnd("finished")


def test_the_users_own_error_is_final_and_comes_with_its_traceback() -> None:
    after = apply_observation(COURSE, ended(1, 1, why="worker 0 failed", traceback="Traceback ..."), 5.0)
    assert after.ended == JobEnd("failed", "worker 0 failed", "Traceback ...")


@pytest.mark.parametrize(("code", "final"), [(1, True), (127, True), (128, False), (255, False)])
def test_exit_codes_up_to_127_are_final(code: int, final: bool) -> None:
    after = apply_observation(COURSE, ended(1, code), 5.0)
    assert (after.ended is not None) == final
    assert after.crashes == (0 if final else 1)


def test_an_agent_that_is_gone_without_a_word_is_followed_by_another_attempt() -> None:
    after = apply_observation(COURSE, Observation(job="j", attempt=1), 5.0)
    assert after.ended is None
    assert (after.over, after.crashes, after.granted) == (1, 1, 2)
    assert after.retry_at_s > 5.0


def test_nothing_is_judged_while_any_process_is_left() -> None:
    lingering = msgspec.structs.replace(ended(1, 0), present=True)
    assert apply_observation(COURSE, lingering, 5.0).over == 0


def test_a_job_is_given_up_after_as_many_retries_as_it_has() -> None:
    course = COURSE
    for attempt in (1, 2):
        course = apply_observation(course, ended(attempt, 137), 5.0)
        assert course.ended is None
    course = apply_observation(course, ended(3, 137, why="gone"), 5.0)
    assert course.ended == JobEnd("failed", "3 crashes, and jobMaxRetryCount is 2; the last: gone")
    assert course.uses == 0


def test_every_crash_waits_longer_than_the_one_before() -> None:
    spec = msgspec.structs.replace(SPEC, run_policy=RunPolicy(job_max_retry_count=100))
    course, waits = msgspec.structs.replace(COURSE, spec=spec), []
    for attempt in range(1, 12):
        course = apply_observation(course, ended(attempt, 137), 0.0)
        waits.append(course.retry_at_s)
    assert waits == sorted(waits)
    assert waits[0] < waits[-1] == 300.0


def test_a_job_that_has_crashed_thousands_of_times_is_tried_again() -> None:
    """One that cannot be judged would stop the controller's turns, for all jobs."""
    spec = msgspec.structs.replace(SPEC, run_policy=RunPolicy(job_max_retry_count=10**6))
    course = msgspec.structs.replace(COURSE, spec=spec, over=5000, crashes=5000)
    assert apply_observation(course, ended(5001, 137), 7.0).retry_at_s == 307.0


def test_preemptions_pauses_and_stops_are_no_crashes() -> None:
    course = COURSE
    for attempt in range(1, 20):
        course = apply_observation(granting(course, 0, 5.0), ended(attempt, 137 if attempt % 2 else 130), 6.0)
        assert course.ended is None
        course = granting(course, 2, 7.0)
    course = apply_observation(course, ended(20, 130, why="stopped by hand"), 8.0)
    assert (course.ended, course.crashes, course.over) == (None, 0, 20)


def test_a_cancelled_job_is_cancelled_once_it_is_gone() -> None:
    course = cancelling(COURSE, 4.0)
    course = apply_observation(course, living(1, 2, 2), 5.0)
    assert (course.ended, course.uses) == (None, 2)
    course = apply_observation(course, ended(1, 130), 6.0)
    assert (course.ended, course.uses) == (JobEnd("cancelled"), 0)


def test_a_job_that_is_cancelled_before_it_began_is_cancelled_at_once() -> None:
    course = apply_observation(cancelling(JobLifecycle(job="j", spec=SPEC), 4.0), Observation(job="j"), 5.0)
    assert course.ended == JobEnd("cancelled")


TARGET = JobEnd("finished", "its loss has reached its target")


def test_a_job_that_stopped_at_its_target_has_finished_and_one_that_failed_there_has_failed() -> None:
    course = msgspec.structs.replace(COURSE, granted=0, ending=TARGET)
    assert apply_observation(course, living(1, 2, 2), 5.0).ended is None
    assert apply_observation(course, ended(1, 130, why="stopped"), 6.0).ended == TARGET
    error = apply_observation(course, ended(1, 1, why="ValueError", traceback="Traceback"), 6.0)
    assert error.ended == JobEnd("failed", "ValueError", "Traceback")


def test_a_job_that_did_not_stop_in_order_says_so_and_is_not_tried_again() -> None:
    course = msgspec.structs.replace(COURSE, granted=0, ending=TARGET)
    after = apply_observation(course, ended(1, 137, why="killed"), 6.0)
    assert after.ended == JobEnd(
        "finished", "its loss has reached its target; its last attempt did not stop cleanly: killed"
    )
    assert after.crashes == 0


def test_a_shrink_frees_only_what_was_seen_gone() -> None:
    course = apply_observation(msgspec.structs.replace(COURSE, granted=4), living(1, 4, 4), 5.0)
    course = granting(course, 2, 6.0)
    assert course.uses == 4
    assert apply_observation(course, living(1, 4, 2), 7.0).uses == 4
    assert apply_observation(course, living(1, 3, 2), 8.0).uses == 3
    assert apply_observation(course, living(1, 2, 2), 9.0).uses == 2


def test_an_agent_that_replaces_a_dead_worker_holds_what_it_aims_at() -> None:
    course = apply_observation(msgspec.structs.replace(COURSE, granted=4), living(1, 4, 4), 5.0)
    assert apply_observation(granting(course, 2, 6.0), living(1, 3, 4), 7.0).uses == 4


def test_not_knowing_is_not_free() -> None:
    course = granting(apply_observation(COURSE, living(1, 2, 2), 5.0), 0, 6.0)
    assert apply_observation(course, living(1, None, None), 7.0).uses == 2


def test_what_was_granted_and_never_seen_is_not_free_either() -> None:
    course = granting(COURSE, 0, 5.0)
    assert course.uses == 2
    assert apply_observation(course, Observation(job="j", present=True), 6.0).uses == 2
    assert apply_observation(course, Observation(job="j"), 7.0).uses == 0
