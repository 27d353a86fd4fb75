"""Deaths around the merging of a node's partial sums, and merged sums that come too late."""

import pytest

from elastane.run.protocol.events import SumsMerged
from tests.run.simulator.faults import HistoryPlan, Kill, Trigger, build_layout
from tests.run.simulator.history import KILLED, History
from tests.run.simulator.reference_run import Shape
from tests.run.simulator.world import Pace

STEPS = 8
SLOW_MERGES = Pace(start_s=0.1, measure_s=0.3)


class WatchedHistory(History):
    """A history that records the merged sums that reach a worker in a later generation than theirs."""

    def __init__(self, plan):
        self.late = []
        super().__init__(plan)

    def start_worker(self, worker):
        super().start_worker(worker)
        process = self.workers[worker]
        pass_on = process.pass_on

        def watch(event):
            if isinstance(event, SumsMerged) and event.generation < process.member.generation.number:
                self.late.append(event)
            pass_on(event)

        process.pass_on = watch


def play(*faults, seed=1, copies=None, pace=None):
    """Play a run of four workers on two nodes to its end, and return the history with its verdict."""
    history = WatchedHistory(
        HistoryPlan(
            seed=seed,
            shape=Shape(layout=build_layout(8, 6, copies, 3), steps=STEPS),
            start=4,
            faults=faults,
            shared=True,
            spread=2,
            pace=pace or Pace(start_s=0.1),
        )
    )
    return history, history.play()


@pytest.mark.parametrize("kind", ["MergeSums", "SumsMerged"])
@pytest.mark.parametrize("copies", [None, 2])
@pytest.mark.parametrize("spared", [0, 1])
@pytest.mark.parametrize("which", range(4))
def test_a_death_before_or_after_a_merge_loses_and_doubles_no_sum(which, spared, copies, kind):
    history, verdict = play(Trigger(0.5, which, kind, spared), copies=copies)
    assert (verdict.code, verdict.steps) == (0, STEPS)
    assert [end.worker for end in history.agent.exits if end.code == KILLED] == [which]


def test_merged_sums_of_an_older_generation_are_void():
    late = 0
    for seed in range(10):
        history, verdict = play(Kill(0.8 + 0.1 * seed, seed), seed=seed, pace=SLOW_MERGES)
        assert (verdict.code, verdict.steps) == (0, STEPS)
        late += len(history.late)
    assert late > 0
