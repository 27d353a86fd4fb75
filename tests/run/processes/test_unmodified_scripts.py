"""Scripts as people have them keep their results while workers are added, killed and removed."""

import json
import re
from collections.abc import Callable
from typing import NamedTuple

import pytest
import torch

from elastane.cli.runs.accelerate_settings import (
    AccelerateFile,
    AccelerateOptions,
    build_accelerate_environment,
)

from .worlds import EndedScript, LiveScript, play_script

pytestmark = pytest.mark.processes

TORCH = ("torch.distributed", "torch.nn.parallel", "torch.utils.data.distributed")


class World(NamedTuple):
    """What the processes of one start complete: the epochs ``first`` to ``last``, with ``size`` processes."""

    first: int
    last: int
    size: int


class ScriptCase(NamedTuple):
    """A script, and what it is to do.

    Args:
        file: the script.
        worlds: what it completes alone, with another worker, after a kill, and alone again.
        held: the epochs in which a worker is added, one is killed, and one is removed.
        check: checks what the script has left.
        unit: what the script calls an epoch.
        args: of the script.
        killed: the worker to kill.
        modules: what the script imports.
        environment: of the script.
    """

    file: str
    worlds: tuple[World, World, World, World]
    held: tuple[int, int, int]
    check: Callable[[EndedScript], None]
    unit: str = "epoch"
    args: tuple[str, ...] = ()
    killed: int = 1
    modules: tuple[str, ...] = TORCH
    environment: dict[str, str] | None = None


def check_tutorial(ended: EndedScript) -> None:
    assert torch.load(ended.folder / "snapshot.pt")["EPOCHS_RUN"] == 7


def check_image_net(ended: EndedScript) -> None:
    assert all(note.endswith(" 32 samples") for note in ended.notes if note.startswith("epoch"))
    newest = torch.load(ended.folder / "checkpoint.pth.tar")
    assert newest["epoch"] == newest["scheduler"]["last_epoch"] == 7
    best = torch.load(ended.folder / "model_best.pth.tar")
    assert best["best"] == newest["best"] > 0.25


def check_nano_gpt(ended: EndedScript) -> None:
    state = torch.load(ended.folder / "ckpt.pt")
    assert state["iter_num"] == 40
    assert {int(one["step"]) for one in state["optimizer"]["state"].values()} == {40}


def check_accelerate(ended: EndedScript) -> None:
    starts = [note for note in ended.notes if note.startswith("start")]
    assert all(note.endswith(" in bf16 on cpu") for note in starts)
    assert len(list(ended.folder.glob("epoch-*"))) == 7


def check_trainer(ended: EndedScript) -> None:
    state = json.loads((ended.folder / "out/checkpoint-8/trainer_state.json").read_text())
    losses = {entry["step"]: entry["loss"] for entry in state["log_history"] if "loss" in entry}
    assert list(losses) == list(range(1, 9))
    assert losses[8] < losses[1]
    assert (ended.folder / "out/model.safetensors").exists()


def check_lightning(ended: EndedScript) -> None:
    last = torch.load(ended.folder / "last.ckpt")
    # An epoch has eight batches, which two processes share.
    assert (last["epoch"], last["global_step"]) == (7, 3 * 8 + 4 * 4 + 1 * 8)


EPOCHS = (World(0, 1, 1), World(2, 3, 2), World(4, 4, 2), World(5, 6, 1))
SCRIPTS = (
    ScriptCase("elastic_tutorial.py", EPOCHS, (2, 4, 5), check_tutorial, args=("--epochs=7",)),
    ScriptCase("image_net.py", EPOCHS, (2, 4, 5), check_image_net, args=("--epochs=7",), killed=0),
    # It saves when it is asked to stop; after the kill it repeats the iterations since its last checkpoint.
    ScriptCase(
        "nano_gpt.py",
        (World(0, 14, 1), World(15, 23, 2), World(20, 32, 2), World(33, 39, 1)),
        (14, 24, 32),
        check_nano_gpt,
        unit="iteration",
        args=("40",),
    ),
    ScriptCase(
        "accelerate_digits.py",
        EPOCHS,
        (2, 4, 5),
        check_accelerate,
        modules=("torch.distributed", "sklearn.datasets", "accelerate"),
        environment=build_accelerate_environment(
            AccelerateOptions(mixed_precision="bf16", cpu=True), AccelerateFile()
        ),
    ),
    # It has a checkpoint after every second step.
    ScriptCase(
        "trainer_fine_tune.py",
        (World(0, 1, 1), World(2, 4, 2), World(4, 5, 2), World(6, 7, 1)),
        (2, 5, 6),
        check_trainer,
        unit="step",
        modules=("transformers", "transformers.models.llama.modeling_llama"),
    ),
    # Lightning finishes the epoch when it is asked to stop.
    ScriptCase(
        "lightning_module.py",
        (World(0, 2, 1), World(3, 4, 2), World(5, 6, 2), World(7, 7, 1)),
        (2, 5, 6),
        check_lightning,
        killed=0,
        modules=("lightning.pytorch",),
    ),
)


@pytest.mark.parametrize(
    "script",
    [
        # The import of transformers makes it long.
        pytest.param(one, id=one.file, marks=pytest.mark.long if "transformers" in one.modules else ())
        for one in SCRIPTS
    ],
)
def test_a_script_keeps_its_results_when_a_worker_is_added_killed_and_removed(stage, tmp_path, script):
    stage.preload(*script.modules)

    async def grow_kill_and_shrink(run: LiveScript) -> None:
        add, kill, remove = script.held
        await run.wait_for_note(f"held {add}")
        await run.resize(2)
        await run.wait_for_note("start 1/2")
        run.release(f"hold-{add}")
        await run.wait_for_note(f"held {kill}", 2)
        await run.kill(script.killed)
        await run.wait_for_note(f"start {script.killed}/2", 2)
        run.release(f"hold-{kill}")
        await run.wait_for_note(f"held {remove}", 2)
        await run.resize(1)
        await run.wait_for_note("start 0/1", 2)
        run.release(f"hold-{remove}")

    ended = play_script(
        stage,
        tmp_path,
        script.file,
        *script.args,
        disturb=grow_kill_and_shrink,
        holds=tuple(f"hold-{epoch}" for epoch in script.held),
        environment=script.environment or {},
    )
    assert ended.outcome.code == 0, ended.describe()
    assert list_starts(ended) == [
        sorted((rank, world.size, world.first) for rank in range(world.size)) for world in script.worlds
    ], ended.describe()
    assert list_done(ended, script.unit) == [
        (epoch, world.size) for world in script.worlds for epoch in range(world.first, world.last + 1)
    ], ended.describe()
    script.check(ended)
    (death,) = ended.find_events("worker.died")
    assert (death.who, death.why) == (f"worker {script.killed}", "killed by SIGKILL")
    assert not ended.find_events("warning")


def list_starts(ended: EndedScript) -> list[list[tuple[int, int, int]]]:
    """Return ``(rank, world size, first epoch)`` of each process, for each start of all processes."""
    found = [re.match(r"start (\d+)/(\d+) from (\d+)", note) for note in ended.notes]
    starts = [(int(one[1]), int(one[2]), int(one[3])) for one in found if one]
    worlds = []
    while starts:
        size = starts[0][1]
        worlds.append(sorted(starts[:size]))
        del starts[:size]
    return worlds


def list_done(ended: EndedScript, unit: str) -> list[tuple[int, int]]:
    """Return ``(epoch, world size)`` of each completed epoch, in order."""
    found = [re.match(rf"{unit} (\d+) of (\d+)", note) for note in ended.notes]
    return [(int(one[1]), int(one[2])) for one in found if one]


def test_each_worker_may_have_several_processes(stage, tmp_path):
    stage.preload(*TORCH)
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
