"""Training continues while the disk of the run directory is full, and completes the ledger later."""

import pytest

from tests.full_disk import fill_disk

pytestmark = pytest.mark.processes

SIZE = 4 << 20


@pytest.fixture
def small_disk(make_small_disk):
    return make_small_disk(SIZE)


def test_lines_of_the_ledger_wait_in_memory_until_the_disk_has_room(
    stage, assert_equals_reference, small_disk
):
    async def disturb(run):
        await run.wait_for_step(4)
        for number in (0, 1):
            (run.run_dir.root / f"gate-{5 + number}").touch()
        for step in range(7, 30):
            run.touch(f"gate-{step}")
        filler = fill_disk(small_disk)
        await run.wait_for_step(29)
        ledger = run.run_dir.ledger.read_bytes()
        assert ledger.count(b"\n") < 29
        filler.unlink()
        run.stop_pacing()

    ended = stage.play("--paced-from=5", disturb=disturb, start=2, run_dir=small_disk / "run")
    assert_equals_reference(ended)
    assert len(ended.find_events("ledger.stalled")) >= 1


def test_a_model_that_cannot_be_saved_ends_the_run_with_the_reason(stage, play_reference, small_disk):
    async def disturb(run):
        await run.wait_for_step(4)
        run.stop_pacing()
        fill_disk(small_disk)

    ended = stage.play("--paced-from=5", disturb=disturb, start=2, run_dir=small_disk / "run")
    assert ended.outcome.code == 1
    assert "No space left on device" in ended.outcome.traceback, ended.describe()
    assert ended.verdict.problems == ()
    steps = len(ended.run.ledger)
    assert ended.losses == play_reference(30).losses[:steps]
