"""What the comparison of contestants on two nodes makes of their steps."""

import os
import time
from pathlib import Path

import pytest
from node_changes import Change, Extent, Failure, format_outcomes, watch
from ticks import Tick, TickWriter, count_discarded_steps, read_steps

LONG = Extent(calm_steps=3, within_s=60.0)


class Scripted:
    """Two workers that have made ten steps, one a second, and the steps that a join brings."""

    def __init__(self, after: range, exit_: str = "") -> None:
        now_s = time.monotonic()
        self.steps: list[Tick] = []
        self.before = [Tick(1, step, now_s - 100 + step, "step", 2) for step in range(1, 11)]
        self.after, self.exit = after, exit_
        self.reads = 0

    def join(self) -> None:
        for step in self.after:
            self.steps.append(Tick(2, step, time.monotonic(), "step", 4))

    def read_steps(self) -> list[Tick]:
        # Nothing at first: only steps from the beginning of the measurement on count as undisturbed.
        self.reads += 1
        return self.before + self.steps if self.reads > 1 else []

    def count_discarded_steps(self, since_s: float) -> int:
        return 0

    def describe_exit(self, node: int) -> str:
        return self.exit


def test_steps_made_again_are_not_new_ones() -> None:
    """Goes back from step 10 to step 8: the longest time without a new step lasts until step 11."""
    run = Scripted(range(8, 14))
    outcome = watch(run, run.join, 4, 0, LONG)
    assert isinstance(outcome, Change)
    assert outcome.usual_s == pytest.approx(1.0)
    assert outcome.first_s < 80 < outcome.stall_s
    assert outcome.lost_steps == 3


def test_old_steps_by_the_new_workers_are_not_enough() -> None:
    run = Scripted(range(8, 13))
    assert watch(run, run.join, 4, 0, Extent(calm_steps=3, within_s=0.0)) == Failure("not within 0 s")


def test_a_contestant_that_ends_is_not_waited_for() -> None:
    run = Scripted(range(0), "its programs end with code 1")
    outcome = watch(run, run.join, 4, 0, LONG)
    assert outcome == Failure("never: its programs end with code 1 after 0 s")


def test_a_contestant_that_hangs_is_not_waited_for_longer() -> None:
    run = Scripted(range(0))
    assert watch(run, run.join, 4, 0, Extent(calm_steps=3, within_s=0.2)) == Failure("not within 0 s")


def test_a_cell_counts_the_failures_among_others() -> None:
    found = [Change(0.2, 3.0, 4.0, 1), Change(0.2, 5.0, 6.0, 2), Failure("not within 120 s")]
    assert format_outcomes(found, "first_s") == "4.00 s (3.00 to 5.00); 1 of 3 not within 120 s"
    assert format_outcomes(found, "stall_s") == "5.00 s (4.00 to 6.00)"
    assert format_outcomes(found[2:], "first_s") == "not within 120 s"
    assert format_outcomes(found[2:], "lost_steps") == ""
    assert format_outcomes([], "first_s") == "not measured"


def test_discarded_steps_are_not_finished_ones(tmp_path: Path) -> None:
    writer = TickWriter(tmp_path)
    writer.record_begin(1)
    writer.record_discard(1)
    writer.record_begin(1)
    writer.record_end(1, 4)
    writer.file.close()
    (finished,) = read_steps(tmp_path)
    assert (finished.pid, finished.step, finished.workers) == (os.getpid(), 1, 4)
    assert count_discarded_steps(tmp_path, 0.0) == 1
    assert count_discarded_steps(tmp_path, finished.at_s) == 0
