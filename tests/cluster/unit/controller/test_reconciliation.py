"""The orders for an engine."""

import msgspec
import pytest

from elastane.cluster.controller.jobs.lifecycle import JobEnd, JobLifecycle
from elastane.cluster.controller.jobs.reconciliation import HOPELESS_S, LINGER_S, choose_order
from elastane.cluster.nouns.engine import (
    EvictWorkers,
    KillAttempt,
    Observation,
    ResizeJob,
    SettleJob,
    StartAttempt,
    StopAttempt,
)
from tests.cluster.job_lifecycles import grant_workers

from .test_lifecycle import SPEC, living

LIMITS = SPEC.elastic_policy.limits
LIFECYCLE = JobLifecycle(job="j", spec=SPEC, granted=2, over=3)
NOT_THERE = Observation(job="j", attempt=3)


def test_a_granted_job_without_processes_is_started_with_the_number_of_its_next_attempt() -> None:
    assert choose_order(LIFECYCLE, NOT_THERE, 5.0) == StartAttempt(job="j", attempt=4, workers=2, spec=SPEC)


def test_no_attempt_begins_before_its_retry_time() -> None:
    assert choose_order(msgspec.structs.replace(LIFECYCLE, retry_at_s=6.0), NOT_THERE, 5.0) is None


def test_a_job_without_a_grant_and_processes_gets_no_order() -> None:
    assert choose_order(grant_workers(LIFECYCLE, 0, 4.0), NOT_THERE, 5.0) is None


@pytest.mark.parametrize(("target", "order"), [(2, None), (None, None), (3, 2), (1, 2)])
def test_a_running_job_with_another_target_is_resized(target, order) -> None:
    expected = None if order is None else ResizeJob(job="j", attempt=4, workers=order, limits=LIMITS)
    assert choose_order(LIFECYCLE, living(4, 2, target), 5.0) == expected


def test_a_running_job_without_a_grant_is_stopped_and_after_its_grace_period_killed() -> None:
    lifecycle = grant_workers(LIFECYCLE, 0, 100.0)
    assert choose_order(lifecycle, living(4, 2, 2), 101.0) == StopAttempt(job="j", attempt=4)
    assert choose_order(lifecycle, living(4, 2, 2), 160.0) == KillAttempt(job="j", attempt=4)


def test_workers_that_miss_their_deadline_are_evicted() -> None:
    lifecycle = grant_workers(msgspec.structs.replace(LIFECYCLE, granted=3), 2, 100.0)
    assert choose_order(lifecycle, living(4, 3, 3), 161.0) == ResizeJob(
        job="j", attempt=4, workers=2, limits=LIMITS
    )
    assert choose_order(lifecycle, living(4, 3, 2), 159.0) is None
    assert choose_order(lifecycle, living(4, 3, 2), 160.0) == EvictWorkers(job="j", attempt=4)
    assert choose_order(lifecycle, living(4, 2, 2), 161.0) is None


def test_an_excess_worker_without_a_deadline_is_not_evicted() -> None:
    assert choose_order(LIFECYCLE, living(4, 3, 2), 1e9) is None
    grown = grant_workers(grant_workers(LIFECYCLE, 1, 100.0), 2, 110.0)
    assert choose_order(grown, living(4, 3, 2), 1e9) is None


def test_an_attempt_with_long_overdue_workers_is_killed() -> None:
    lifecycle = grant_workers(msgspec.structs.replace(LIFECYCLE, granted=3), 2, 100.0)
    hopeless_s = lifecycle.gone_by_s + HOPELESS_S
    for seen in (living(4, 3, 2), living(4, None, None)):
        beyond = msgspec.structs.replace(lifecycle, beyond_since_s=101.0)
        assert not isinstance(choose_order(beyond, seen, hopeless_s - 1), KillAttempt)
        assert choose_order(beyond, seen, hopeless_s) == KillAttempt(job="j", attempt=4)
        # One worker too many for a moment, long after a shrink: its successor has already arrived.
        lately = msgspec.structs.replace(lifecycle, beyond_since_s=hopeless_s)
        assert not isinstance(choose_order(lately, seen, hopeless_s + 1), KillAttempt)
    # It may never have heard of it.
    assert choose_order(beyond, living(4, 3, 3), hopeless_s) == ResizeJob(
        job="j", attempt=4, workers=2, limits=LIMITS
    )
    ending = msgspec.structs.replace(living(4, 3, 2), fixed=True)
    assert not isinstance(choose_order(beyond, ending, hopeless_s), KillAttempt)


def test_an_attempt_that_begins_after_it_was_judged_is_treated_like_any_other() -> None:
    assert choose_order(LIFECYCLE, living(3, 2, 2), 5.0) is None
    assert choose_order(LIFECYCLE, living(3, 1, 1), 5.0) == ResizeJob(
        job="j", attempt=3, workers=2, limits=LIMITS
    )


def test_processes_without_an_agent_have_some_time_to_begin_or_to_end() -> None:
    seen = Observation(job="j", attempt=3, present=True, lingering_s=LINGER_S / 2)
    assert choose_order(LIFECYCLE, seen, 5.0) is None
    seen = msgspec.structs.replace(seen, lingering_s=LINGER_S * 2)
    assert choose_order(LIFECYCLE, seen, 5.0) == KillAttempt(job="j", attempt=3)


def test_an_ended_job_without_processes_is_settled() -> None:
    lifecycle = msgspec.structs.replace(LIFECYCLE, ended=JobEnd("finished"))
    assert choose_order(lifecycle, NOT_THERE, 5.0) == SettleJob(job="j")
