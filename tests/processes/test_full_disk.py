"""Training outlives a full disk under the run directory, and its ledger is whole once there is room again."""

import os
from pathlib import Path

import pytest

pytestmark = pytest.mark.processes

SIZE = 4 << 20


@pytest.fixture
def small_disk(small_disk_of):
    return small_disk_of(SIZE)


def fill(where: Path) -> Path:
    filler = where / "filler"
    with filler.open("wb", buffering=0) as file:
        for size in (1 << 16, 1 << 12, 1):
            try:
                while file.write(bytes(size)):
                    pass
            except OSError:
                continue
    assert os.statvfs(where).f_bavail == 0
    return filler


def test_lines_wait_in_memory_until_there_is_room(stage, assert_undisturbed, small_disk):
    async def story(running):
        await running.until_step(4)
        for number in (0, 1):
            (running.run_dir.root / f"gate-{5 + number}").touch()
        for step in range(7, 30):
            running.open(f"gate-{step}")
        filler = fill(small_disk)
        await running.until_step(29)
        ledger = running.run_dir.ledger.read_bytes()
        assert ledger.count(b"\n") < 29
        filler.unlink()
        running.go()

    ended = stage.play("--paced-from=5", story=story, start=2, run_dir=small_disk / "run")
    assert_undisturbed(ended)
    assert len(ended.events("ledger.stalled")) >= 1


def test_a_model_that_cannot_be_saved_is_an_error_with_a_reason(stage, quiet, small_disk):
    async def story(running):
        await running.until_step(4)
        running.go()
        fill(small_disk)

    ended = stage.play("--paced-from=5", story=story, start=2, run_dir=small_disk / "run")
    assert ended.over.code == 1
    assert "No space left on device" in ended.over.traceback, ended.story()
    assert ended.verdict.problems == ()
    steps = len(ended.run.ledger)
    assert ended.losses == quiet(30).losses[:steps]
