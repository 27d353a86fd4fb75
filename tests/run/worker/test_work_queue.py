"""Queues of work on sums and state: at once on the host, late and in any order on a device that lags."""

import threading
from types import SimpleNamespace

import pytest
import torch

from elastane.run.nouns.heartbeat_file import Phase
from elastane.run.protocol import actions, events
from elastane.run.protocol.messages import BEGINNING
from elastane.run.worker import work_queue
from elastane.run.worker.state.devices import SideStream
from elastane.run.worker.work_queue import AtOnce, OnStream, Work
from elastane.run.worker.worker_round import WorkerRound
from tests.run.laggard import LaggardQueue
from tests.waiting import wait_until

from .cuda_streams import Streams

QUEUES = {
    "at once": AtOnce,
    "laggard": lambda answer: LaggardQueue(answer, 7, slowest_s=0.002),
    "streams": lambda answer: make_stream_queue(answer, "cpu"),
    "gpu": lambda answer: make_stream_queue(answer, "cuda"),
}


def make_stream_queue(answer, device, *, answer_now=None, fail=None):
    return OnStream(answer, answer_now or answer, fail, SideStream(torch.device(device)))


@pytest.fixture(params=QUEUES)
def make_queue(request, monkeypatch):
    """Return the constructor of each kind of queue that this machine has."""
    if request.param == "gpu" and not torch.cuda.is_available():
        pytest.skip("no CUDA device: torch.cuda.is_available() is False")
    if request.param == "streams":
        Streams(monkeypatch)
    return QUEUES[request.param]


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


def test_work_counts_the_bytes_that_it_reads_from_peers(make_queue):
    answers, theirs = [], torch.ones(8)
    queue = make_queue(answers.append)
    for _ in range(2):
        queue.issue(Work(events.Applied, inputs=[theirs, theirs[:2]]))
    wait_until(lambda: len(answers) == 2, "all work has ended")
    assert queue.bytes_read == 2 * (8 + 2) * 4


def test_work_on_a_stream_is_answered_by_another_thread_when_its_kernels_have_ended(monkeypatch):
    streams, answers, at_once = Streams(monkeypatch), [], []
    queue = make_stream_queue(answers.append, "cuda", answer_now=at_once.append)
    streams.arrival.clear()
    queue.issue(Work(lambda: events.Reduced(1, (1,))))
    queue.issue(Work(lambda: events.Reduced(1, (2,))))
    # What only this worker reads needs no wait: its later kernels come after on the stream.
    queue.issue(Work(events.Applied, private=True))
    assert at_once == [events.Applied()]
    wait_until(lambda: streams.waits, "the thread of the queue waits")
    assert answers == []
    streams.arrival.set()
    wait_until(lambda: len(answers) == 2, "all work has ended")
    assert [answer.blocks for answer in answers] == [(1,), (2,)]
    assert all(name.startswith("elastane-queue") for name in streams.waits)


def test_an_error_of_a_kernel_ends_the_worker_and_is_no_answer(monkeypatch):
    streams, answers, errors = Streams(monkeypatch), [], []
    failed = RuntimeError("CUDA error: an illegal memory access was encountered")

    def fail():
        raise failed

    monkeypatch.setattr(streams, "wait", fail)
    make_stream_queue(answers.append, "cuda", fail=errors.append).issue(Work(events.Applied))
    wait_until(lambda: errors, "the error has arrived")
    assert (errors, answers) == ([failed], [])


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
