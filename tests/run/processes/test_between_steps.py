"""What a script changes between two steps is exact while a joiner gets its state in portions."""

import pytest

from .stage import find_members

pytestmark = pytest.mark.processes


async def one_joins_slowly(run) -> None:
    """Worker 1 joins and needs several steps to get all of the optimizer state; then worker 0 is killed."""
    await run.wait_for_step(3)
    await run.resize(2)
    await run.wait_for_event("worker.ready", "worker 1")
    await run.step_until(lambda answer: find_members(answer) == {0, 1})
    answer = await run.wait_until(lambda _: True)
    assert any(row.worker == 1 and row.blocks == 0 for row in answer.processes), "it has all state already"
    run.stop_pacing()


@pytest.fixture(scope="module")
def reference(stage):
    ended = stage.play(script="clipping.py", start=1, max_workers=4)
    assert ended.outcome.code == 0, ended.describe()
    return ended


@pytest.mark.parametrize("transport", ["shared", pytest.param("tcp", marks=pytest.mark.long)])
def test_a_large_model_is_clipped_while_a_joiner_takes_values_from_others(stage, reference, transport):
    ended = stage.play(
        "--paced-from=4",
        script="clipping.py",
        disturb=one_joins_slowly,
        start=1,
        transport=transport,
        max_workers=4,
    )
    assert ended.outcome.code == 0, ended.describe()
    assert ended.losses == reference.losses
    assert ended.digests == reference.digests
    assert ended.model_digest == reference.model_digest
