"""Reads of memory that end late: a status waits for them; and the parts of the tree that workers read."""

from collections import Counter

import pytest

from elastane.run.protocol import actions, messages
from elastane.run.protocol.member_machine import MemberMachine
from elastane.run.protocol.shares import assign_shares
from elastane.run.protocol.tree import cover
from tests.run.simulator.checkers import Violation
from tests.run.simulator.faults import HistoryPlan, Kill, build_layout
from tests.run.simulator.history import History
from tests.run.simulator.reference_run import Shape
from tests.run.simulator.world import Pace

STEPS = 6


def make_history(seed):
    """Return a history in which a worker dies while others read sums, which takes long."""
    return History(
        HistoryPlan(
            seed=seed,
            shape=Shape(layout=build_layout(8, 3, None, 2), steps=STEPS),
            start=3,
            shared=True,
            early_parts=True,
            slowest_read_s=0.3,
            faults=(Kill(0.6 + 0.02 * seed, seed),),
            pace=Pace(start_s=0.1),
        )
    )


def test_a_status_before_the_end_of_reads_tears_sums(monkeypatch):
    seeds = (6, 12, 27)
    assert [make_history(seed).play().steps for seed in seeds] == [STEPS] * len(seeds)
    # The mutation: a worker does not know of its reads.
    monkeypatch.setattr(MemberMachine, "reads", property(lambda _me: 0, lambda _me, _n: None), raising=False)
    torn = []
    for history in map(make_history, seeds):
        with pytest.raises(Violation):
            history.play()
        torn += history.checker.torn
    assert torn


class CountedHistory(History):
    """A history that counts the blocks that each worker reads of the memory of others, and early parts."""

    def __init__(self, plan):
        self.read, self.early = Counter(), 0
        super().__init__(plan)

    def start_worker(self, worker):
        super().start_worker(worker)
        process = self.workers[worker]
        perform = process.perform

        def count(action):
            match action:
                case actions.Reduce(blocks=blocks, parts=parts):
                    theirs = sum(len(some) for other, some in parts.items() if other != worker)
                    self.read[worker] += len(blocks) * theirs
                case actions.TakeSums(blocks=blocks):
                    self.read[worker] += len(blocks)
                case actions.Send(message=messages.PartialSumsReady()):
                    self.early += len(process.member.round.leaves) < len(process.member.assigned) - 1
                case _:
                    pass
            perform(action)

        process.perform = count


@pytest.mark.parametrize("workers", [2, 3, 4, 5, 6, 7, 8])
@pytest.mark.parametrize("early", [True, False])
def test_workers_read_as_much_as_in_a_ring_for_each_part_of_the_tree(workers, early):
    """A ring moves 2 (W - 1) / W times the gradient; the tree as much, if each worker has one part."""
    virtual_ranks, blocks = 16, 4 * workers
    history = CountedHistory(
        HistoryPlan(
            seed=1,
            shape=Shape(layout=build_layout(virtual_ranks, blocks, None, 2), steps=1),
            start=workers,
            max_workers=workers,
            shared=True,
            early_parts=early,
        )
    )
    assert history.play().steps == 1
    shares = assign_shares(virtual_ranks, (1.0,) * workers)
    parts = [len(cover(range(*share), virtual_ranks)) for share in shares]
    mean = sum(parts) / workers
    for_all = sum(history.read.values()) / workers
    assert for_all == pytest.approx((mean + 1) * (workers - 1) / workers * blocks, rel=0.02)
    for worker, own in enumerate(parts):
        theirs = (sum(parts) - own) / workers + (workers - 1) / workers
        assert history.read[worker] == pytest.approx(theirs * blocks, rel=0.02)
    assert (history.early > 0) == (early and max(parts) > 1)
