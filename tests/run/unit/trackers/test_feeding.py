"""Feeding a tracker that fails at any moment: in the end it has each point once."""

import threading
from itertools import count

import pytest

from elastane.run.trackers import feeding
from elastane.run.trackers.feeding import Feed, Subject, describe_tracker_error, wait_for_feeds
from elastane.run.trackers.metric_rows import MetricRow, select_missing

from .conftest import make_evaluation, make_line

STEPS = 12


class Tracker:
    """A tracker that takes points one by one, and fails after some of them.

    Args:
        fails_at: the numbers of the points, over all attempts, after which it fails.
    """

    def __init__(self, fails_at: set[int]) -> None:
        self.points: list[tuple[str, int, float]] = []
        self.fails_at = fails_at
        self.outcomes: list[tuple[str, int]] = []

    def open(self, run):
        return self.read_last_steps()

    def write(self, rows):
        for row in rows:
            for name, value in row.values.items():
                self.points.append((name, row.step, value))
                if len(self.points) in self.fails_at:
                    self.fails_at.remove(len(self.points))
                    raise OSError("it took this point, but did not say so")

    def close(self, outcome, step):
        self.outcomes.append((outcome, step))

    def read_last_steps(self):
        return {name: step for name, step, _ in self.points}

    def describe_view(self):
        return "look here"


@pytest.fixture(autouse=True)
def impatient(monkeypatch):
    for name in ("POLL_S", "FIRST_RETRY_S", "LONGEST_RETRY_S"):
        monkeypatch.setattr(feeding, name, 0.001)


@pytest.fixture
def feed(recorded):
    """Return a function that feeds a tracker to the end of the run, and the lines for the user."""

    def run(tracker):
        said = []
        ending = threading.Event()
        ending.set()
        subject = Subject(lambda: recorded.tracked, recorded.open_source, lambda: "finished")
        Feed("it", tracker, subject, ending, said.append).run()
        return said

    return run


def write_run(recorded):
    for step in range(1, STEPS + 1):
        recorded.add(make_line(step))
        if step % 4 == 0:
            recorded.add(make_evaluation(step, f"e{step}", correct=float(step)))


def list_points(rows: list[MetricRow]) -> list[tuple[str, int, float]]:
    return sorted((name, row.step, value) for row in rows for name, value in row.values.items())


def test_a_tracker_that_fails_after_any_point_gets_each_point_once(recorded, feed):
    write_run(recorded)
    expected = list_points(recorded.open_source().read())
    for place in range(1, len(expected) + 1):
        tracker = Tracker({place})
        feed(tracker)
        assert sorted(tracker.points) == expected, f"it failed after point {place}"


def test_a_tracker_that_fails_all_the_time_gets_each_point_once(recorded, feed):
    write_run(recorded)
    tracker = Tracker(set(range(1, 1000, 2)))
    said = feed(tracker)
    assert sorted(tracker.points) == list_points(recorded.open_source().read())
    assert tracker.outcomes == [("finished", STEPS)]
    assert len([line for line in said if "fails" in line]) == len(
        [line for line in said if "works again" in line]
    )


def test_a_failure_is_told_once_until_the_tracker_works_again(recorded, feed):
    class Refusing(Tracker):
        refusals = count()

        def open(self, run):
            if next(self.refusals) < 5:
                raise ConnectionError("refused")
            return super().open(run)

    write_run(recorded)
    said = feed(Refusing(set()))
    assert [line.split(";")[0] for line in said] == ["it fails: refused", "it: look here", "it works again"]


def test_a_tracker_that_loses_its_last_points_gets_them_again(recorded, feed):
    """A client that keeps points in memory may lose them when it is closed."""

    class Forgetful(Tracker):
        closings = count()

        def close(self, outcome, step):
            super().close(outcome, step)
            if next(self.closings) < 2:
                del self.points[-9:]

    write_run(recorded)
    tracker = Forgetful(set())
    feed(tracker)
    assert sorted(tracker.points) == list_points(recorded.open_source().read())


def test_a_run_that_never_began_is_in_no_tracker(recorded):
    ending = threading.Event()
    ending.set()
    tracker = Tracker(set())
    Feed("it", tracker, Subject(lambda: None, recorded.open_source, lambda: "failed"), ending, print).run()
    assert tracker.outcomes == []


def test_the_end_of_a_run_does_not_wait_long_for_a_tracker_that_refuses_everything(recorded):
    feed = Feed("it", Tracker(set()), None, threading.Event(), print)
    feed.error = "refused"
    assert wait_for_feeds([feed], grace_s=0.1) == [feed]
    feed.done = True
    assert wait_for_feeds([feed], grace_s=0.1) == []


def test_an_error_shows_no_password_and_no_control_characters():
    shown = describe_tracker_error(ValueError("POST http://me:secret@host/api failed\x1b[31m\nsee above"))
    assert "secret" not in shown
    assert shown.isprintable()
    assert "http://host/api" in shown
    assert describe_tracker_error(ValueError()) == "ValueError"


def test_points_of_an_earlier_step_of_another_name_are_not_lost():
    rows = [MetricRow(1, 0.0, {"a": 1.0}), MetricRow(2, 0.0, {"a": 2.0, "b": 2.0})]
    missing, known = select_missing(rows, {"a": 2})
    assert [dict(row.values) for row in missing] == [{"b": 2.0}]
    assert known == {"a": 2, "b": 2}
