"""A script of Accelerate continues from its own checkpoint at each new size, and after a kill."""

import pytest

from elastane.cli.runs.accelerate_settings import (
    AccelerateFile,
    AccelerateOptions,
    build_accelerate_environment,
)

from .worlds import LiveScript, play_script

pytestmark = pytest.mark.processes


@pytest.fixture(autouse=True)
def loaded_modules(stage):
    stage.preload("torch.distributed", "sklearn.datasets", "accelerate")


def test_a_script_of_accelerate_grows_and_survives_a_kill(stage, tmp_path):
    async def disturb(run: LiveScript) -> None:
        await run.wait_for_note("epoch 0 of 1")
        await run.resize(2)
        await run.wait_for_note("start 0/2")
        run.release("hold-0")
        await run.wait_for_note("epoch 2 of 2")
        await run.kill(1)
        await run.wait_for_note("start 0/2", 2)
        run.release("hold-2")

    options = AccelerateOptions(mixed_precision="bf16", cpu=True)
    ended = play_script(
        stage,
        tmp_path,
        "accelerate_digits.py",
        disturb=disturb,
        holds=("hold-0", "hold-2"),
        environment=build_accelerate_environment(options, AccelerateFile()),
    )
    assert ended.outcome.code == 0, ended.describe()
    starts = [note for note in ended.notes if note.startswith("start 0/")]
    assert starts == [
        "start 0/1 from 0 in bf16 on cpu",
        "start 0/2 from 1 in bf16 on cpu",
        "start 0/2 from 3 in bf16 on cpu",
    ]
    epochs = [note for note in ended.notes if note.startswith("epoch")]
    assert epochs == ["epoch 0 of 1", "epoch 1 of 2", "epoch 2 of 2", "epoch 3 of 2"]
