"""Queues of work on sums and state: at once on the host, late and in any order on a device that lags."""

import threading
from types import SimpleNamespace

import pytest
import torch

from elastane.run.nouns.heartbeat_file import Phase
from elastane.run.protocol import actions, events
from elastane.run.protocol.messages import BEGINNING
from elastane.run.worker import work_queue
from elastane.run.worker.work_queue import AtOnce, Work
from elastane.run.worker.worker_round import WorkerRound
from tests.run.laggard import LaggardQueue
from tests.waiting import wait_until

QUEUES = [AtOnce, lambda answer: LaggardQueue(answer, 7, slowest_s=0.002)]


@pytest.fixture(params=QUEUES, ids=["at once", "laggard"])
def make_queue(request):
    return request.param


def test_each_work_is_done_once_and_answered_with_its_result(make_queue):
    answers, sums = [], torch.zeros(8)
    queue = make_queue(answers.append)

    def add(block):
        sums[block] += 1
        return events.Reduced(1, (block,))

    for block in range(8):
        queue.issue(Work(lambda block=block: add(block), [sums[block : block + 1]]))
    wait_until(lambda: len(answers) == 8, "all work has ended")
    assert sorted(answer.blocks for answer in answers) == [(block,) for block in range(8)]
    assert sums.tolist() == [1.0] * 8
    assert not queue.is_stuck()


def test_what_a_laggard_writes_is_not_a_number_until_it_has_ended():
    answers, go_on = [], threading.Event()
    queue = LaggardQueue(answers.append, 1, slowest_s=0.0)
    queue.issue(Work(lambda: go_on.wait() and events.Applied()))
    values, counts = torch.ones(3), torch.ones(3, dtype=torch.int64)

    def add():
        values.add_(1)
        counts.add_(1)
        return events.StopRequested()

    queue.issue(Work(add, [values, counts]))
    assert values.isnan().all()
    assert counts.min() > 1
    with pytest.raises(AssertionError, match="write to one place"):
        queue.issue(Work(add, [values]))
    go_on.set()
    wait_until(lambda: events.StopRequested() in answers, "the work has ended")
    assert (values.tolist(), counts.tolist()) == ([2.0] * 3, [2] * 3)


def test_a_worker_with_work_that_never_ends_stops_beating(monkeypatch):
    """Then the agent finds that it hangs, as it finds any silent worker."""
    monkeypatch.setattr(work_queue, "STUCK_S", 0.0)
    go_on, beats, beats_at_wait = threading.Event(), [], []
    queue = LaggardQueue(lambda _answer: None, 1, slowest_s=0.0)

    def begin():
        queue.issue(Work(lambda: go_on.wait() and events.Applied()))
        return actions.BeginRound(1, 1, 1, 2)

    def wait():
        beats_at_wait.append(len(beats))

    def wait_until_work_ends():
        wait()
        go_on.set()
        wait_until(lambda: not queue.is_stuck(), "the work has ended")

    def commit():
        return actions.CommitRound(BEGINNING, frozenset(), True)

    directives = iter([begin, wait, wait_until_work_ends, commit])
    reactor = SimpleNamespace(
        queue=queue, take_directive=lambda _timeout_s: next(directives)(), post_result=lambda _event: None
    )
    assert list(WorkerRound(reactor, SimpleNamespace(beat=beats.append), "train", 8)) == []
    first, second = beats_at_wait
    assert second == first, "no beat while the work is under way"
    assert beats[second:] == [Phase.STEP] * 2, "one when it has ended, and one for the commit"
