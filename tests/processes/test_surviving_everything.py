"""Everything dies, at any moment, and the run goes on from its checkpoints to the same bytes."""

import pytest

pytestmark = pytest.mark.processes


def test_one(lives, assert_as_if_nothing_happened):
    lives.begin("--start=2", "--checkpoint-every=4 steps", args=("--paced-from=11",))
    lives.until_step(10)
    lives.until_event("checkpoint.saved", 2)
    lives.kill_everything()
    lives.open("gates")
    lives.resume("--start=3", "--copies=2")
    ended = lives.ended()
    assert_as_if_nothing_happened(ended)
