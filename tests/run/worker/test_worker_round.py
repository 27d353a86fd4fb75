"""The training thread's part of a round with a spot check."""

from collections import deque

from elastane.run.protocol import actions, events
from elastane.run.protocol.messages import BEGINNING, Leaf
from elastane.run.worker.worker_round import WorkerRound


class Script:
    """Gives directives one after the other, and keeps the results; it stands for the reactor."""

    def __init__(self, *directives):
        self.directives, self.results = deque(directives), []

    def take_directive(self, timeout_s):
        waits_for_result = isinstance(self.directives[0], actions.CommitRound)
        return None if timeout_s == 0.0 and waits_for_result else self.directives.popleft()

    def post_result(self, event):
        self.results.append(event)


class Pulse:
    def beat(self, _phase):
        pass


def test_a_spot_check_comes_last_and_its_time_counts_for_no_share():
    script = Script(
        actions.BeginRound(1, 1, 1, 2),
        actions.Recompute(5),
        actions.Compute((0, 1), 1, 5),
        actions.CommitRound(BEGINNING, frozenset(), True),
    )
    round_ = WorkerRound(script, Pulse(), "train", 8)
    order = []
    for rank in round_:
        order.append((rank, round_.recomputes))
        round_.seconds["compute"] += 100 if round_.recomputes else 1
        round_.finish_leaf(Leaf(rank, 0))
    assert order == [(0, False), (1, False), (5, True)]
    assert [type(result) for result in script.results[1:]] == [
        events.Computed,
        events.Computed,
        events.Recomputed,
    ]
    assert round_.seconds["compute"] == 2
    assert round_.computed == 2
