"""What an engine is told."""

import msgspec
import pytest

from elastane.api.observations import Observation
from elastane.api.orders import EvictWorkers, KillAttempt, ResizeJob, SettleJob, StartAttempt, StopAttempt
from elastane.controller.jobs.lifecycle import JobEnd, JobLifecycle
from elastane.controller.jobs.reconciliation import HOPELESS_S, LINGER_S, choose_order
from tests.courses import granting

from .test_observing import SPEC, living

LIMITS = SPEC.elastic_policy.limits
COURSE = JobLifecycle(job="j", spec=SPEC, granted=2, over=3)
NOT_THERE = Observation(job="j", attempt=3)


def test_a_granted_job_that_is_not_there_is_started_with_the_number_of_its_next_attempt() -> None:
    assert choose_order(COURSE, NOT_THERE, 5.0) == StartAttempt(job="j", attempt=4, workers=2, spec=SPEC)


def test_no_attempt_begins_before_its_time() -> None:
    assert choose_order(msgspec.structs.replace(COURSE, retry_at_s=6.0), NOT_THERE, 5.0) is None


def test_a_job_without_a_grant_is_left_alone() -> None:
    assert choose_order(granting(COURSE, 0, 4.0), NOT_THERE, 5.0) is None


@pytest.mark.parametrize(("target", "order"), [(2, None), (None, None), (3, 2), (1, 2)])
def test_a_living_job_is_resized_when_it_aims_at_another_number(target, order) -> None:
    expected = None if order is None else ResizeJob(job="j", attempt=4, workers=order, limits=LIMITS)
    assert choose_order(COURSE, living(4, 2, target), 5.0) == expected


def test_a_job_without_a_grant_is_stopped_and_after_its_grace_killed() -> None:
    course = granting(COURSE, 0, 100.0)
    assert choose_order(course, living(4, 2, 2), 101.0) == StopAttempt(job="j", attempt=4)
    assert choose_order(course, living(4, 2, 2), 160.0) == KillAttempt(job="j", attempt=4)


def test_workers_that_have_not_left_in_time_are_evicted() -> None:
    course = granting(msgspec.structs.replace(COURSE, granted=3), 2, 100.0)
    assert choose_order(course, living(4, 3, 3), 161.0) == ResizeJob(
        job="j", attempt=4, workers=2, limits=LIMITS
    )
    assert choose_order(course, living(4, 3, 2), 159.0) is None
    assert choose_order(course, living(4, 3, 2), 160.0) == EvictWorkers(job="j", attempt=4)
    assert choose_order(course, living(4, 2, 2), 161.0) is None


def test_a_worker_too_many_that_nobody_was_asked_to_give_is_not_evicted() -> None:
    assert choose_order(COURSE, living(4, 3, 2), 1e9) is None
    grown = granting(granting(COURSE, 1, 100.0), 2, 110.0)
    assert choose_order(grown, living(4, 3, 2), 1e9) is None


def test_an_attempt_that_keeps_what_it_should_have_given_back_long_ago_is_killed() -> None:
    course = granting(msgspec.structs.replace(COURSE, granted=3), 2, 100.0)
    hopeless_s = course.gone_by_s + HOPELESS_S
    for seen in (living(4, 3, 2), living(4, None, None)):
        beyond = msgspec.structs.replace(course, beyond_since_s=101.0)
        assert not isinstance(choose_order(beyond, seen, hopeless_s - 1), KillAttempt)
        assert choose_order(beyond, seen, hopeless_s) == KillAttempt(job="j", attempt=4)
        # A worker too many for a moment, long after some shrink: one whose successor has come already.
        lately = msgspec.structs.replace(course, beyond_since_s=hopeless_s)
        assert not isinstance(choose_order(lately, seen, hopeless_s + 1), KillAttempt)
    # It may never have heard of it.
    assert choose_order(beyond, living(4, 3, 3), hopeless_s) == ResizeJob(
        job="j", attempt=4, workers=2, limits=LIMITS
    )
    ending = msgspec.structs.replace(living(4, 3, 2), fixed=True)
    assert not isinstance(choose_order(beyond, ending, hopeless_s), KillAttempt)


def test_an_attempt_that_begins_after_it_was_judged_is_as_good_as_any() -> None:
    assert choose_order(COURSE, living(3, 2, 2), 5.0) is None
    assert choose_order(COURSE, living(3, 1, 1), 5.0) == ResizeJob(
        job="j", attempt=3, workers=2, limits=LIMITS
    )


def test_processes_without_an_agent_are_given_some_time_to_begin_or_to_end() -> None:
    seen = Observation(job="j", attempt=3, present=True, lingering_s=LINGER_S / 2)
    assert choose_order(COURSE, seen, 5.0) is None
    seen = msgspec.structs.replace(seen, lingering_s=LINGER_S * 2)
    assert choose_order(COURSE, seen, 5.0) == KillAttempt(job="j", attempt=3)


def test_a_job_that_is_over_and_gone_is_settled() -> None:
    course = msgspec.structs.replace(COURSE, ended=JobEnd("finished"))
    assert choose_order(course, NOT_THERE, 5.0) == SettleJob(job="j")
