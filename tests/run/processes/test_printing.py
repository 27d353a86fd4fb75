"""Each line that a script prints between two steps is recorded once for all workers."""

import pytest

from .stage import add_worker_2_and_drain_worker_0

pytestmark = pytest.mark.processes


def test_lines_are_recorded_once_while_workers_join_and_leave(stage):
    ended = stage.play(
        "--paced-from=5", script="printing.py", start=2, disturb=add_worker_2_and_drain_worker_0
    )
    assert ended.outcome.code == 0, ended.describe()
    losses = [f"{float.fromhex(loss):.4f}" for loss in ended.losses]
    steps = [f"step {number}: {loss}" for number, loss in enumerate(losses, 1)]
    printed = [event.why for event in ended.find_events("printed")]
    assert printed == ["begins", *steps, "ends"], ended.describe()
    assert ended.messages == [f"also {number}" for number in range(1, 17)]
    for worker in (0, 1, 2):
        assert "inside\n" in ended.read_log(f"worker-{worker}")
