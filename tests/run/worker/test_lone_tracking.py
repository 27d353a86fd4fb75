"""The rows of a process that trains alone wait for a tracker that hangs, in bounded memory."""

import pytest

from elastane.run.trackers.metric_rows import MetricRow
from elastane.run.worker import lone_tracking
from elastane.run.worker.lone_tracking import RowQueue


@pytest.fixture(autouse=True)
def small(monkeypatch):
    monkeypatch.setattr(lone_tracking, "MOST_ROWS", 32)


@pytest.fixture
def said():
    return []


@pytest.fixture
def queue(said):
    return RowQueue("mlflow", said.append)


def put(queue, first, last):
    for step in range(first, last + 1):
        queue.put([MetricRow(step, 0.0, {"train/loss": 1.0})])


def list_steps(queue):
    return [row.step for row in queue.read()]


def test_all_rows_wait_while_there_is_room(queue, said):
    put(queue, 1, 32)
    assert list_steps(queue) == list(range(1, 33))
    assert (said, queue.dropped) == ([], 0)


def test_a_tracker_that_hangs_loses_the_oldest_rows_which_is_said_once(queue, said):
    put(queue, 1, 1000)
    steps = list_steps(queue)
    assert len(steps) <= 32
    assert steps == list(range(1001 - len(steps), 1001))
    assert queue.dropped == 1000 - len(steps)
    [line] = said
    assert "those up to step 3 are dropped" in line


def test_rows_that_are_being_written_when_others_are_dropped_are_confirmed_once(queue):
    put(queue, 1, 30)
    assert list_steps(queue) == list(range(1, 31))
    put(queue, 31, 40)
    # Step 1 to 30 have arrived after all.
    queue.confirm()
    assert list_steps(queue) == list(range(31, 41))


def test_a_second_outage_is_said_again(queue, said):
    put(queue, 1, 100)
    list_steps(queue)
    queue.confirm()
    put(queue, 101, 200)
    assert len(said) == 2
