"""Scripts as people have them keep their results while the number of workers changes, and after a kill."""

import re

import pytest

from .worlds import EndedScript, LiveScript, play_script

pytestmark = pytest.mark.processes

EPOCHS = 6


@pytest.fixture(autouse=True)
def loaded_modules(stage):
    stage.preload("torch.distributed", "torch.nn.parallel", "torch.utils.data.distributed")


def list_starts(ended: EndedScript) -> list[tuple[int, int, int]]:
    """Return ``(rank, world size, first epoch or iteration)`` of each process, in order of its start."""
    found = [re.match(r"start (\d+)/(\d+) from (\d+)", note) for note in ended.notes]
    return [(int(one[1]), int(one[2]), int(one[3])) for one in found if one]


def list_done(ended: EndedScript, unit: str = "epoch") -> list[tuple[int, int]]:
    """Return ``(epoch, world size)`` of each completed epoch, in order."""
    found = [re.match(rf"{unit} (\d+) of (\d+)", note) for note in ended.notes]
    return [(int(one[1]), int(one[2])) for one in found if one]


async def grow_then_shrink(run: LiveScript) -> None:
    await run.wait_for_note("epoch 1")
    await run.resize(2)
    await run.wait_for_note("start 0/2")
    run.release("hold-2")
    await run.wait_for_note("epoch 3 of 2")
    await run.resize(1)
    await run.wait_for_note("start 0/1", 2)
    run.release("hold-4")


async def kill_worker_1(run: LiveScript) -> None:
    await run.wait_for_note("epoch 1 of 2")
    await run.kill(1)
    await run.wait_for_note("start 1/2", 2)
    run.release("hold-2")


def test_the_elastic_tutorial_goes_on_from_its_snapshot_at_each_new_size(stage, tmp_path):
    holds = ("hold-2", "hold-4")
    ended = play_script(stage, tmp_path, "elastic_tutorial.py", disturb=grow_then_shrink, holds=holds)
    assert ended.outcome.code == 0, ended.describe()
    assert list_done(ended) == [(0, 1), (1, 1), (2, 2), (3, 2), (4, 1), (5, 1)]
    starts = list_starts(ended)
    assert starts[0] == (0, 1, 0)
    assert sorted(starts[1:3]) == [(0, 2, 2), (1, 2, 2)]
    assert starts[3] == (0, 1, 4)


def test_the_elastic_tutorial_survives_a_kill_at_the_same_size(stage, tmp_path):
    ended = play_script(
        stage, tmp_path, "elastic_tutorial.py", disturb=kill_worker_1, holds=("hold-2",), start=2
    )
    assert ended.outcome.code == 0, ended.describe()
    assert [epoch for epoch, _ in list_done(ended)] == list(range(EPOCHS))
    assert sorted(list_starts(ended)[2:]) == [(0, 2, 2), (1, 2, 2)]
    (death,) = ended.find_events("worker.died")
    assert (death.who, death.why) == ("worker 1", "killed by SIGKILL")


def test_a_script_in_the_manner_of_nanogpt_saves_when_it_is_asked_to_stop(stage, tmp_path):
    async def resize(run: LiveScript) -> None:
        await run.wait_for_note("iteration 14")
        await run.resize(2)
        await run.wait_for_note("start 0/2")
        run.release("hold-15")
        await run.wait_for_note("iteration 24")
        await run.resize(1)
        await run.wait_for_note("start 0/1", 2)
        run.release("hold-25")

    ended = play_script(stage, tmp_path, "nano_gpt.py", "30", disturb=resize, holds=("hold-15", "hold-25"))
    assert ended.outcome.code == 0, ended.describe()
    # It stopped where it was: no iteration was lost and none was repeated.
    assert [number for number, _ in list_done(ended, "iteration")] == sorted(
        set(range(1, 31)) - {number for number in map(read_saved, ended.notes) if number}
    )
    assert not ended.find_events("warning")


def read_saved(note: str) -> int:
    """Return the iteration at which a process has saved on request; 0: the note is about something else."""
    found = re.match(r"saved \d+ at (\d+)", note)
    return int(found[1]) if found else 0


def test_a_script_in_the_manner_of_the_imagenet_example_keeps_every_sample(stage, tmp_path):
    async def disturb(run: LiveScript) -> None:
        await run.wait_for_note("epoch 0")
        await run.resize(2)
        await run.wait_for_note("start 1/2")
        run.release("hold-1")
        await run.wait_for_note("epoch 2 of 2")
        await run.kill(0)
        await run.wait_for_note("start 0/2", 2)
        run.release("hold-3")

    ended = play_script(stage, tmp_path, "image_net.py", disturb=disturb, holds=("hold-1", "hold-3"))
    assert ended.outcome.code == 0, ended.describe()
    assert list_done(ended) == [(0, 1), (1, 2), (2, 2), (3, 2), (4, 2)]
    assert all(note.endswith("32 samples") for note in ended.notes if note.startswith("epoch"))
    assert (ended.folder / "model_best.pth.tar").exists()


def test_each_worker_may_have_several_processes(stage, tmp_path):
    ended = play_script(stage, tmp_path, "image_net.py", "--epochs=1", start=2, processes=2)
    assert ended.outcome.code == 0, ended.describe()
    locals_ = sorted(re.findall(r"start (\d)/4 .* local (\d)", "\n".join(ended.notes)))
    assert locals_ == [("0", "0"), ("1", "1"), ("2", "0"), ("3", "1")]
    assert {log.name for log in ended.run_dir.logs.glob("worker-*.log")} == {
        "worker-0-0.log",
        "worker-0-1.log",
        "worker-1-0.log",
        "worker-1-1.log",
    }
