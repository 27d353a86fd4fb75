"""Everything dies, at any moment, and the run goes on from its checkpoints to the same bytes."""

import hashlib
import os
import random
import signal
import subprocess
import sys
import time
from functools import cache
from pathlib import Path

import pytest

from elastane.api.checkpoints import MARKER, format_checkpoint_name
from elastane.api.control import AskResize

from .attempts import processes_of
from .stage import eventually, pid_of

pytestmark = pytest.mark.processes

EVERY_FOUR = "--checkpoint-every=4 steps"


# -- while a checkpoint is being made ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("moment", "first", "then"),
    [
        ("copying", ("--start=2",), ("--start=3", "--copies=2")),
        ("within-part", ("--start=2", "--copies=2"), ("--start=1", "--copies=all")),
        ("before-record", ("--start=1",), ("--start=4", "--copies=3")),
        ("before-metadata", ("--start=3", "--copies=2"), ("--start=2", "--copies=1")),
        ("within-manifest", ("--start=2",), ("--start=2", "--transport=tcp")),
        ("before-marker", ("--start=3",), ("--start=1", "--copies=2")),
        ("within-marker", ("--start=1", "--copies=2"), ("--start=3", "--copies=all")),
        ("after-marker", ("--start=2", "--copies=1"), ("--start=3",)),
    ],
)
def test_everything_dies_while_a_checkpoint_is_being_made(
    attempts, assert_as_if_nothing_happened, moment, first, then
):
    attempts.begin(*first, EVERY_FOUR, args=("--paced-from=10", f"--hold={moment}:12"))
    attempts.until_event("checkpoint.saved", 2)
    attempts.open("gates")
    attempts.until_file("held")
    attempts.kill_everything()
    attempts.resume(*then)
    ended = attempts.ended()
    assert_as_if_nothing_happened(ended)
    (resumed,) = ended.events("run.resumed")
    # With its marker a checkpoint exists, whether or not anybody has heard of it.
    assert resumed.step == (12 if moment == "after-marker" else 8)
    assert not attempts.found()[format_checkpoint_name(30, 1)].damages


def test_everything_dies_while_an_older_checkpoint_is_being_deleted(attempts, assert_as_if_nothing_happened):
    attempts.begin("--start=2", EVERY_FOUR, args=("--paced-from=14", "--hold=tidying-up:4"))
    attempts.until_file("held")
    attempts.kill_everything()
    assert not (attempts.run_dir.checkpoints / format_checkpoint_name(4) / MARKER).exists()
    attempts.open("gates")
    attempts.resume("--start=1")
    ended = attempts.ended()
    assert_as_if_nothing_happened(ended)
    assert format_checkpoint_name(4) not in attempts.found(), (
        "what was left of it is deleted by the next attempt"
    )


def test_what_an_attempt_began_with_stays_for_those_that_join_it_later(
    attempts, assert_as_if_nothing_happened
):
    """A worker that joins looks at it, long after two newer ones have pushed it out of the newest two."""
    attempts.begin("--start=1", "--checkpoint-every=2 steps", args=("--paced-from=10",))
    attempts.until(lambda: format_checkpoint_name(8) in attempts.complete(), "the checkpoint of step 8")
    attempts.kill_everything()
    attempts.resume("--start=1")
    for step in range(10, 18):
        attempts.open(f"gate-{step}")
    kept = [format_checkpoint_name(8), format_checkpoint_name(14, 1), format_checkpoint_name(16, 1)]
    attempts.until(lambda: attempts.complete() == kept, f"only {kept}")
    attempts.ask(AskResize(workers=2))
    attempts.open("gates")
    ended = attempts.ended()
    assert_as_if_nothing_happened(ended)
    assert [event.who for event in ended.events("worker.joined")] == ["worker 0", "worker 1", "worker 2"]


# -- at any moment -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", [1, *(pytest.param(seed, marks=pytest.mark.long) for seed in (2, 3))])
def test_everything_dies_again_and_again(attempts, assert_as_if_nothing_happened, seed):
    """At instants and with numbers of workers and copies that follow from the seed."""
    dice = random.Random(seed)  # noqa: S311 - a plan, not a secret

    def shape() -> tuple[str, str]:
        return f"--start={dice.randint(1, 4)}", f"--copies={dice.choice(['all', '1', '2', '3'])}"

    attempts.begin(*shape(), "--checkpoint-every=3 steps", args=("--steps=60", "--seconds=0.01"))
    attempts.until_event("checkpoint.saved")
    for _ in range(4):
        time.sleep(dice.uniform(0, 1.2))
        attempts.kill_everything(dice)
        if attempts.events("run.finished"):
            break
        attempts.resume(*shape())
    assert_as_if_nothing_happened(attempts.ended())


def test_a_module_is_trained_as_its_script_is_and_resumed_from_anywhere(
    attempts, assert_as_if_nothing_happened
):
    attempts.begin("--start=2", EVERY_FOUR, module="training", args=("--paced-from=10",))
    attempts.until_event("checkpoint.saved", 2)
    attempts.kill_everything()
    attempts.open("gates")
    attempts.resume("--start=2")
    assert_as_if_nothing_happened(attempts.ended())


def test_a_run_is_resumed_the_moment_its_agent_was_killed(attempts, assert_as_if_nothing_happened):
    """The others end by themselves, and until they have, nobody writes beside them."""
    attempts.begin("--start=2", EVERY_FOUR, args=("--paced-from=10",))
    attempts.until_event("checkpoint.saved", 2)
    before = processes_of(attempts.run_dir)
    assert len(before) >= 5
    attempts.send(signal.SIGKILL)
    attempts.open("gates")
    attempts.resume("--start=1")
    assert_as_if_nothing_happened(attempts.ended())
    assert not before.keys() & processes_of(attempts.run_dir).keys()


def test_a_coordinator_left_behind_is_waited_for(attempts, assert_as_if_nothing_happened):
    attempts.begin("--start=1", EVERY_FOUR, args=("--paced-from=10",))
    attempts.until_event("checkpoint.saved", 2)
    left = pid_of(attempts.status, "coordinator")
    os.kill(left, signal.SIGSTOP)
    attempts.send(signal.SIGKILL)
    assert attempts.finish() == -signal.SIGKILL
    events = attempts.run_dir.events.read_bytes()
    attempts.resume()
    assert attempts.finish() == 2
    assert "is in use" in attempts.said
    assert attempts.run_dir.events.read_bytes() == events
    os.kill(left, signal.SIGCONT)
    eventually(lambda: left not in processes_of(attempts.run_dir), "it ends with its agent's pipe")
    attempts.open("gates")
    attempts.resume("--start=2")
    assert_as_if_nothing_happened(attempts.ended())


# -- after the last step -------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def quietly(stage):
    """Runs of one worker to which nothing happens."""

    @cache
    def play(script, *args):
        ended = stage.play(*args, script=script)
        assert ended.over.code == 0, ended.story()
        return ended

    return play


def assert_equal(ended, expected):
    assert ended.over.code == 0, ended.story()
    assert ended.verdict.problems == (), ended.story()
    assert ended.losses == expected.losses, ended.story()
    assert ended.digests == expected.digests, ended.story()
    assert ended.model == expected.model
    assert set(ended.said) == set(expected.said), ended.story()
    assert [event.why for event in ended.events("run.finished")] == [
        event.why for event in expected.events("run.finished")
    ]


@pytest.mark.parametrize(
    ("script", "args"),
    [
        ("training.py", ()),
        ("mixed.py", ("--end=patience",)),
        ("mixed.py", ("--end=break",)),
        ("mixed.py", ("--end=return",)),
    ],
)
def test_everything_dies_before_the_model_is_written(attempts, quietly, script, args):
    """What is left to do is to write it, however the training had ended."""
    expected = quietly(script, *args)
    attempts.begin("--start=2", EVERY_FOUR, script=script, args=(*args, "--hold=before-model"))
    attempts.until_file("held")
    attempts.kill_everything()
    assert not attempts.run_dir.model_files.weights.exists()
    attempts.resume("--start=3", "--copies=2")
    ended = attempts.ended()
    assert_equal(ended, expected)
    (resumed,) = ended.events("run.resumed")
    assert (resumed.step, resumed.detail["lost_steps"]) == (len(expected.run.ledger), 0)
    assert max(line.generation for line in ended.run.ledger) == 1, "nothing was trained again"


def test_every_worker_dies_before_the_model_is_written(attempts, assert_as_if_nothing_happened):
    """While ``elastane run`` lives, it needs nobody to resume it."""
    attempts.begin("--start=2", EVERY_FOUR, args=("--hold=before-model",))
    attempts.until_file("held")
    kill_workers(attempts)
    ended = attempts.ended()
    assert_as_if_nothing_happened(ended)
    (resumed,) = ended.events("run.resumed")
    assert (resumed.step, resumed.why.split(":")[0]) == (30, "every copy of the state died")


def test_a_finished_run_is_not_resumed(attempts):
    attempts.begin(args=("--steps=2",))
    assert attempts.finish() == 0
    before = contents(attempts.run_dir.root)
    attempts.resume()
    assert attempts.finish() == 2
    assert "has finished" in attempts.said
    assert contents(attempts.run_dir.root) == before


# -- every copy of the state ---------------------------------------------------------------------------------


def kill_workers(attempts, *others: str) -> None:
    for row in attempts.status.processes:
        if row.role in ("worker", *others):
            os.kill(row.pid, signal.SIGKILL)


@pytest.mark.parametrize("others", [(), ("coordinator",), ("coordinator", "fork-server")])
def test_every_copy_of_the_state_dies_and_the_run_has_another_attempt(
    attempts, assert_as_if_nothing_happened, others
):
    attempts.begin("--start=3", "--copies=2", EVERY_FOUR, args=("--paced-from=12",))
    attempts.until_event("checkpoint.saved", 2)
    attempts.until_step(11)
    kill_workers(attempts, *others)
    attempts.open("gates")
    ended = attempts.ended()
    assert_as_if_nothing_happened(ended)
    (resumed,) = ended.events("run.resumed")
    assert (resumed.step, resumed.detail["lost_steps"]) == (8, 3)


def test_without_a_checkpoint_the_loss_of_every_copy_ends_the_run(attempts):
    attempts.begin("--start=2", "--checkpoint-every=never", args=("--paced-from=5",))
    attempts.until_step(4)
    kill_workers(attempts)
    assert attempts.finish() == 1
    assert "cannot resume" in attempts.said
    assert "every copy died" in attempts.said


# -- damage --------------------------------------------------------------------------------------------------


def contents(root: Path) -> dict[str, str]:
    """Digests of all files of a run."""
    return {
        str(path.relative_to(root)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(root.rglob("*"))
        if path.is_file()
    }


def flip_a_bit(checkpoint: Path) -> str:
    part = min(checkpoint.glob("part-*.distcp"))
    text = bytearray(part.read_bytes())
    text[len(text) // 2] ^= 1
    part.write_bytes(text)
    return f"{part.name}: its checksum is"


def cut_short(checkpoint: Path) -> str:
    part = max(checkpoint.glob("part-*.distcp"))
    os.truncate(part, part.stat().st_size - 1)
    return f"{part.name}: has {part.stat().st_size} bytes instead of"


def take_a_part(checkpoint: Path) -> str:
    part = min(checkpoint.glob("part-*.distcp"))
    part.unlink()
    return f"{part.name}: is missing"


def spoil_the_manifest(checkpoint: Path) -> str:
    manifest = checkpoint / "manifest.json"
    manifest.write_bytes(manifest.read_bytes().replace(b'"step": 8', b'"step": 9', 1))
    return "manifest.json: does not match"


def take_the_marker(checkpoint: Path) -> str:
    """It was never finished then, which is no damage and needs no words."""
    (checkpoint / MARKER).unlink()
    return "checkpoint step-00000004 is valid"


@pytest.mark.parametrize(
    "damage",
    [flip_a_bit, cut_short, take_a_part, spoil_the_manifest, take_the_marker],
    ids=lambda d: d.__name__,
)
def test_a_damaged_checkpoint_is_named_and_the_one_before_it_used(
    attempts, assert_as_if_nothing_happened, damage
):
    attempts.begin("--start=2", EVERY_FOUR, args=("--paced-from=10",))
    attempts.until_event("checkpoint.saved", 2)
    attempts.kill_everything()
    said = damage(attempts.run_dir.checkpoints / format_checkpoint_name(8))
    attempts.open("gates")
    attempts.resume("--start=3", "--copies=2")
    ended = attempts.ended()
    assert_as_if_nothing_happened(ended)
    assert said in ended.over.why
    assert ended.events("run.resumed")[0].detail["name"] == format_checkpoint_name(4)


def test_with_every_checkpoint_damaged_nothing_is_started_and_nothing_changed(attempts):
    attempts.begin("--start=2", EVERY_FOUR, args=("--paced-from=10",))
    attempts.until_event("checkpoint.saved", 2)
    attempts.kill_everything()
    flip_a_bit(attempts.run_dir.checkpoints / format_checkpoint_name(4))
    cut_short(attempts.run_dir.checkpoints / format_checkpoint_name(8))
    before = contents(attempts.run_dir.root)
    attempts.resume()
    assert attempts.finish() == 1
    assert "none of the 2 checkpoints" in attempts.said
    assert format_checkpoint_name(8) in attempts.said
    assert contents(attempts.run_dir.root) == before


def test_before_the_first_checkpoint_there_is_nothing_to_resume(attempts):
    attempts.begin("--start=2", "--checkpoint-every=25 steps", args=("--paced-from=10",))
    attempts.until_step(9)
    attempts.kill_everything()
    before = contents(attempts.run_dir.root)
    attempts.resume()
    assert attempts.finish() == 1
    assert "holds no finished checkpoint" in attempts.said
    assert contents(attempts.run_dir.root) == before


# -- what must come back -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("script", "args"),
    [
        ("feeding.py", ("stream", "--until=3 epochs")),
        ("feeding.py", ("loaders",)),
        ("mixed.py", ("--end=patience",)),
    ],
    ids=["cursors of streams", "loaders", "scaler, plateau, keep and patience"],
)
def test_state_of_every_kind_comes_back(attempts, quietly, script, args):
    """In the middle of an epoch, with scales moved, steps skipped and patience half run out."""
    expected = quietly(script, *args)
    attempts.begin("--start=2", EVERY_FOUR, script=script, args=(*args, "--paced-from=10"))
    attempts.until_event("checkpoint.saved", 2)
    attempts.kill_everything()
    attempts.open("gates")
    attempts.resume("--start=3", "--copies=2")
    ended = attempts.ended()
    assert_equal(ended, expected)
    assert ended.events("run.resumed")[0].step == 8


# -- and by the command line alone, with attempts that import everything anew --------------------------------

SURVIVE = Path(__file__).parents[2] / "benchmarks" / "survive.py"


@pytest.mark.long
def test_three_histories_end_with_the_bytes_of_the_quiet_run():
    """What fails here is repeated with ``make survive SEED=1 HISTORIES=3``."""
    command = [sys.executable, str(SURVIVE), "--seed=1", "--histories=3"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "3 of 3 histories" in done.stdout
