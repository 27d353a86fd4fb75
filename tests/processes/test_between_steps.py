"""What a script changes between two steps is exact while a joiner gets its state in portions."""

import pytest

from .stage import member_states

pytestmark = pytest.mark.processes


async def one_joins_slowly(running) -> None:
    """Worker 1 joins and needs several steps to get all of the optimizer state; then worker 0 is killed."""
    await running.until_step(3)
    await running.resize(2)
    await running.until_event("worker.ready", "worker 1")
    await running.pace(lambda answer: member_states(answer) == {0, 1})
    answer = await running.until(lambda _: True)
    assert any(row.worker == 1 and row.blocks == 0 for row in answer.processes), "it has all state already"
    running.go()


@pytest.mark.parametrize("transport", ["shared", "tcp"])
def test_a_large_model_is_clipped_while_a_joiner_takes_values_from_others(stage, transport):
    ended = stage.play(
        "--paced-from=4",
        script="clipping.py",
        story=one_joins_slowly,
        start=1,
        transport=transport,
        max_workers=4,
    )
    quiet = stage.play(script="clipping.py", start=1, max_workers=4)
    assert ended.over.code == quiet.over.code == 0, ended.story()
    assert ended.losses == quiet.losses
    assert ended.digests == quiet.digests
    assert ended.model == quiet.model
