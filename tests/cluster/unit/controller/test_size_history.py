"""The history of a job's sizes: stops and losses of devices count, changes of its own users do not."""

import pytest

from elastane.cluster.controller.jobs.size_history import SizeHistory, is_preempted, record_decision
from elastane.cluster.nouns.plans import (
    AtMaximum,
    BudgetAllows,
    BudgetSpent,
    Decision,
    DidNotReturn,
    GivesWay,
    NeverFits,
    NodesLeave,
    NoRoom,
    SizeNotLegal,
    Suspended,
    TargetMet,
)

TAKEN = GivesWay(job="other", pool="a", devices=1, because="minimum")


def decision(action, *why):
    return Decision(job="train", action=action, workers={}, drain={}, drain_s=30.0, entitled=0, why=why)


@pytest.mark.parametrize(
    ("action", "why", "setbacks"),
    [
        ("shrink", (TAKEN,), 3),
        ("preempt", (TAKEN,), 4),
        ("move", (TAKEN,), 3),
        ("shrink", (AtMaximum(workers=2),), 3),
        ("shrink", (TargetMet(workers=2, throughput=9.0),), 3),
        ("shrink", (BudgetAllows(workers=2, left=9.0),), 3),
        ("shrink", (SizeNotLegal(workers=3),), 3),
        ("shrink", (NodesLeave(pool="a", workers=1), SizeNotLegal(workers=3)), 4),
        ("shrink", (DidNotReturn(workers=1),), 4),
        ("preempt", (NodesLeave(pool="a", workers=1),), 4),
        ("preempt", (Suspended(),), 3),
        ("shrink", (TAKEN, AtMaximum(workers=2)), 3),
        ("shrink", (TAKEN, NodesLeave(pool="a", workers=1)), 4),
        ("grow", (), 3),
        ("keep", (TAKEN,), 3),
    ],
)
def test_stops_and_losses_of_devices_are_setbacks(action, why, setbacks):
    before = SizeHistory(started_s=0.0, resized_s=50.0, setbacks=3)
    assert record_decision(before, decision(action, *why), 100.0).setbacks == setbacks


@pytest.mark.parametrize(
    ("action", "why", "for_others"),
    [
        ("preempt", (TAKEN,), True),
        ("preempt", (NodesLeave(pool="a", workers=1), NoRoom(pool="a", need=1, room=0, node=None)), True),
        ("preempt", (BudgetSpent(spent=2.0, budget=1.0),), False),
        ("preempt", (Suspended(),), False),
        ("preempt", (NeverFits(need=9, most=4),), False),
        ("preempt", (SizeNotLegal(workers=3),), False),
        ("preempt", (DidNotReturn(workers=1),), False),
        ("shrink", (TAKEN,), False),
    ],
)
def test_a_job_that_loses_all_workers_to_others_is_preempted(action, why, for_others):
    assert is_preempted(decision(action, *why)) == for_others
