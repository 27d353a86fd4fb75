"""All processes of a run die at any moment; the run resumes from its checkpoints to the same bytes."""

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

from elastane.run.nouns.checkpoints import MARKER, format_checkpoint_name
from elastane.run.nouns.control import AskResize
from tests.waiting import pause, wait_until

from .attempts import find_run_processes
from .stage import get_pid

pytestmark = pytest.mark.processes

EVERY_FOUR = "--checkpoint-every=4 steps"


# -- while a checkpoint is written --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("moment", "first", "then"),
    [
        ("within-part", ("--start=2", "--copies=2"), ("--start=1", "--copies=all")),
        ("within-manifest", ("--start=2",), ("--start=2", "--transport=tcp")),
        ("before-marker", ("--start=3",), ("--start=1", "--copies=2")),
        ("after-marker", ("--start=2", "--copies=1"), ("--start=3",)),
        *(
            pytest.param(*way, marks=pytest.mark.long)
            for way in (
                ("copying", ("--start=2",), ("--start=3", "--copies=2")),
                ("before-record", ("--start=1",), ("--start=4", "--copies=3")),
                ("before-metadata", ("--start=3", "--copies=2"), ("--start=2", "--copies=1")),
                ("within-marker", ("--start=1", "--copies=2"), ("--start=3", "--copies=all")),
            )
        ),
    ],
)
def test_all_processes_may_die_while_a_checkpoint_is_written(
    attempts, assert_attempts_equal_reference, moment, first, then
):
    attempts.begin(*first, EVERY_FOUR, args=("--paced-from=10", f"--hold={moment}:12"))
    attempts.wait_for_event("checkpoint.saved", 2)
    attempts.touch("gates")
    attempts.wait_for_file("held")
    attempts.kill_everything()
    attempts.resume(*then)
    ended = attempts.wait_for_end()
    assert_attempts_equal_reference(ended)
    (resumed,) = ended.find_events("run.resumed")
    # A checkpoint with its marker is complete, even if no event announced it.
    assert resumed.step == (12 if moment == "after-marker" else 8)
    assert not attempts.find_checkpoints()[format_checkpoint_name(30, 1)].damages


def test_all_processes_may_die_while_an_older_checkpoint_is_deleted(
    attempts, assert_attempts_equal_reference
):
    attempts.begin("--start=2", EVERY_FOUR, args=("--paced-from=14", "--hold=deleting:4"))
    attempts.wait_for_file("held")
    attempts.kill_everything()
    assert not (attempts.run_dir.checkpoints / format_checkpoint_name(4) / MARKER).exists()
    attempts.touch("gates")
    attempts.resume("--start=1")
    ended = attempts.wait_for_end()
    assert_attempts_equal_reference(ended)
    assert format_checkpoint_name(4) not in attempts.find_checkpoints(), (
        "the next attempt deletes the rest of it"
    )


def test_the_checkpoint_that_an_attempt_began_with_is_kept_for_later_workers(
    attempts, assert_attempts_equal_reference
):
    """A worker that joins reads it, long after it stopped to be one of the newest two."""
    attempts.begin("--start=1", "--checkpoint-every=2 steps", args=("--paced-from=10",))
    attempts.wait_until(
        lambda: format_checkpoint_name(8) in attempts.list_complete_checkpoints(), "the checkpoint of step 8"
    )
    attempts.kill_everything()
    attempts.resume("--start=1")
    for step in range(10, 18):
        attempts.touch(f"gate-{step}")
    kept = [format_checkpoint_name(8), format_checkpoint_name(14, 1), format_checkpoint_name(16, 1)]
    attempts.wait_until(lambda: attempts.list_complete_checkpoints() == kept, f"only {kept}")
    attempts.ask(AskResize(workers=2))
    attempts.wait_for_event("worker.ready", 3)

    def make_step() -> None:
        if (now := attempts.status) is not None:
            attempts.touch(f"gate-{now.step + 1}")
        pause()

    wait_until(
        lambda: len(attempts.find_events("worker.joined")) == 3, "worker 2 has joined", meanwhile=make_step
    )
    attempts.touch("gates")
    ended = attempts.wait_for_end()
    assert_attempts_equal_reference(ended)
    assert [event.who for event in ended.find_events("worker.joined")] == ["worker 0", "worker 1", "worker 2"]


# -- at any moment -------------------------------------------------------------------------------------------


@pytest.mark.long
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_all_processes_may_die_again_and_again(attempts, assert_attempts_equal_reference, first_seed, seed):
    """The instants and the numbers of workers and copies follow from the seed."""
    dice = random.Random(first_seed + seed)

    def shape() -> tuple[str, str]:
        return f"--start={dice.randint(1, 4)}", f"--copies={dice.choice(['all', '1', '2', '3'])}"

    attempts.begin(*shape(), "--checkpoint-every=3 steps", args=("--steps=60", "--seconds=0.01"))
    attempts.wait_for_event("checkpoint.saved")
    for _ in range(4):
        time.sleep(dice.uniform(0, 1.2))  # not a wait: the instant is drawn
        attempts.kill_everything(dice)
        if attempts.find_events("run.finished"):
            break
        attempts.resume(*shape())
    assert_attempts_equal_reference(attempts.wait_for_end())


def test_a_module_trains_as_its_script_and_resumes_in_another_folder(
    attempts, assert_attempts_equal_reference
):
    attempts.begin("--start=2", EVERY_FOUR, module="training", args=("--paced-from=10",))
    attempts.wait_for_event("checkpoint.saved", 2)
    attempts.kill_everything()
    attempts.touch("gates")
    attempts.resume("--start=2")
    assert_attempts_equal_reference(attempts.wait_for_end())


def test_a_run_resumes_right_after_its_agent_was_killed(attempts, assert_attempts_equal_reference):
    """The other processes end by themselves, and the new attempt waits until they have."""
    attempts.begin("--start=2", EVERY_FOUR, args=("--paced-from=10",))
    attempts.wait_for_event("checkpoint.saved", 2)
    before = find_run_processes(attempts.run_dir)
    assert len(before) >= 5
    attempts.send_signal(signal.SIGKILL)
    attempts.touch("gates")
    attempts.resume("--start=1")
    assert_attempts_equal_reference(attempts.wait_for_end())
    assert not before.keys() & find_run_processes(attempts.run_dir).keys()


def test_an_attempt_is_refused_while_a_coordinator_of_the_last_one_exists(
    attempts, assert_attempts_equal_reference
):
    attempts.begin("--start=1", EVERY_FOUR, args=("--paced-from=10",))
    attempts.wait_for_event("checkpoint.saved", 2)
    left = get_pid(attempts.status, "coordinator")
    os.kill(left, signal.SIGSTOP)
    attempts.send_signal(signal.SIGKILL)
    assert attempts.wait_for_exit() == -signal.SIGKILL
    events = attempts.run_dir.events.read_bytes()
    attempts.resume()
    assert attempts.wait_for_exit() == 2
    assert "is in use" in attempts.output
    assert attempts.run_dir.events.read_bytes() == events
    os.kill(left, signal.SIGCONT)
    wait_until(
        lambda: left not in find_run_processes(attempts.run_dir),
        "the coordinator has ended with its agent's pipe",
    )
    attempts.touch("gates")
    attempts.resume("--start=2")
    assert_attempts_equal_reference(attempts.wait_for_end())


# -- after the last step -------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def play_undisturbed(stage):
    """Return a function that trains one undisturbed worker, once for each script and arguments."""

    @cache
    def play(script, *args):
        ended = stage.play(*args, script=script)
        assert ended.outcome.code == 0, ended.describe()
        return ended

    return play


def assert_equal(ended, expected):
    assert ended.outcome.code == 0, ended.describe()
    assert ended.verdict.problems == (), ended.describe()
    assert ended.losses == expected.losses, ended.describe()
    assert ended.digests == expected.digests, ended.describe()
    assert ended.model_digest == expected.model_digest
    assert set(ended.messages) == set(expected.messages), ended.describe()
    assert [event.why for event in ended.find_events("run.finished")] == [
        event.why for event in expected.find_events("run.finished")
    ]


@pytest.mark.parametrize(
    ("script", "args"),
    [
        ("training.py", ()),
        ("mixed.py", ("--end=patience",)),
        pytest.param("mixed.py", ("--end=break",), marks=pytest.mark.long),
        pytest.param("mixed.py", ("--end=return",), marks=pytest.mark.long),
    ],
)
def test_all_processes_may_die_before_the_model_is_written(attempts, play_undisturbed, script, args):
    """The next attempt only writes the model, for each way in which the training can end."""
    expected = play_undisturbed(script, *args)
    attempts.begin("--start=2", EVERY_FOUR, script=script, args=(*args, "--hold=before-model"))
    attempts.wait_for_file("held")
    attempts.kill_everything()
    assert not attempts.run_dir.model_files.weights.exists()
    attempts.resume("--start=3", "--copies=2")
    ended = attempts.wait_for_end()
    assert_equal(ended, expected)
    (resumed,) = ended.find_events("run.resumed")
    assert (resumed.step, resumed.detail["lost_steps"]) == (len(expected.run.ledger), 0)
    assert max(line.generation for line in ended.run.ledger) == 1, "no step was trained again"


def test_every_worker_may_die_before_the_model_is_written(attempts, assert_attempts_equal_reference):
    """A living ``elastane run`` begins the next attempt by itself."""
    attempts.begin("--start=2", EVERY_FOUR, args=("--hold=before-model",))
    attempts.wait_for_file("held")
    kill_workers(attempts)
    ended = attempts.wait_for_end()
    assert_attempts_equal_reference(ended)
    (resumed,) = ended.find_events("run.resumed")
    assert (resumed.step, resumed.why.split(":")[0]) == (30, "every copy of the state was lost")


def test_a_finished_run_is_not_resumed(attempts):
    attempts.begin(args=("--steps=2",))
    assert attempts.wait_for_exit() == 0
    before = compute_file_digests(attempts.run_dir.root)
    attempts.resume()
    assert attempts.wait_for_exit() == 2
    assert "has finished" in attempts.output
    assert compute_file_digests(attempts.run_dir.root) == before


# -- every copy of the state ---------------------------------------------------------------------------------


def kill_workers(attempts, *others: str) -> None:
    for row in attempts.status.processes:
        if row.role in ("worker", *others):
            os.kill(row.pid, signal.SIGKILL)


@pytest.mark.parametrize(
    "others", [(), pytest.param(("coordinator",), marks=pytest.mark.long), ("coordinator", "fork-server")]
)
def test_a_run_has_another_attempt_when_every_copy_of_the_state_is_lost(
    attempts, assert_attempts_equal_reference, others
):
    attempts.begin("--start=3", "--copies=2", EVERY_FOUR, args=("--paced-from=12",))
    attempts.wait_for_event("checkpoint.saved", 2)
    attempts.wait_for_step(11)
    kill_workers(attempts, *others)
    attempts.touch("gates")
    ended = attempts.wait_for_end()
    assert_attempts_equal_reference(ended)
    (resumed,) = ended.find_events("run.resumed")
    assert (resumed.step, resumed.detail["lost_steps"]) == (8, 3)


def test_a_run_begins_again_if_its_state_is_lost_before_the_first_checkpoint(
    attempts, assert_attempts_equal_reference
):
    attempts.begin("--start=2", "--checkpoint-every=1h", args=("--paced-from=5",))
    attempts.wait_for_step(4)
    kill_workers(attempts)
    attempts.touch("gates")
    ended = attempts.wait_for_end()
    assert_attempts_equal_reference(ended)
    (resumed,) = ended.find_events("run.resumed")
    assert (resumed.step, resumed.detail["lost_steps"]) == (0, 4)
    assert "starting again from the beginning; 4 steps are made again" in attempts.output


def test_a_run_without_checkpoints_ends_when_every_copy_of_the_state_is_lost(attempts):
    attempts.begin("--start=2", "--checkpoint-every=never", args=("--paced-from=5",))
    attempts.wait_for_step(4)
    kill_workers(attempts)
    assert attempts.wait_for_exit() == 1
    assert "cannot resume" in attempts.output
    assert "every copy died" in attempts.output


# -- damage --------------------------------------------------------------------------------------------------


def compute_file_digests(root: Path) -> dict[str, str]:
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


def remove_a_part(checkpoint: Path) -> str:
    part = min(checkpoint.glob("part-*.distcp"))
    part.unlink()
    return f"{part.name}: is missing"


def spoil_the_manifest(checkpoint: Path) -> str:
    manifest = checkpoint / "manifest.json"
    manifest.write_bytes(manifest.read_bytes().replace(b'"step": 8', b'"step": 9', 1))
    return "manifest.json: does not match"


def remove_the_marker(checkpoint: Path) -> str:
    """Make the checkpoint an unfinished one; it is not damaged, so no message mentions it."""
    (checkpoint / MARKER).unlink()
    return "checkpoint step-00000004 is valid"


@pytest.mark.parametrize(
    "damage",
    [
        flip_a_bit,
        remove_the_marker,
        *(
            pytest.param(damage, marks=pytest.mark.long)
            for damage in (cut_short, remove_a_part, spoil_the_manifest)
        ),
    ],
    ids=lambda d: d.__name__,
)
def test_a_damaged_checkpoint_is_named_and_the_one_before_it_is_used(
    attempts, assert_attempts_equal_reference, damage
):
    attempts.begin("--start=2", EVERY_FOUR, args=("--paced-from=10",))
    attempts.wait_for_event("checkpoint.saved", 2)
    attempts.kill_everything()
    message = damage(attempts.run_dir.checkpoints / format_checkpoint_name(8))
    attempts.touch("gates")
    attempts.resume("--start=3", "--copies=2")
    ended = attempts.wait_for_end()
    assert_attempts_equal_reference(ended)
    assert message in ended.outcome.why
    assert ended.find_events("run.resumed")[0].detail["name"] == format_checkpoint_name(4)


def test_a_run_with_only_damaged_checkpoints_does_not_resume_and_is_not_changed(attempts):
    attempts.begin("--start=2", EVERY_FOUR, args=("--paced-from=10",))
    attempts.wait_for_event("checkpoint.saved", 2)
    attempts.kill_everything()
    flip_a_bit(attempts.run_dir.checkpoints / format_checkpoint_name(4))
    cut_short(attempts.run_dir.checkpoints / format_checkpoint_name(8))
    before = compute_file_digests(attempts.run_dir.root)
    attempts.resume()
    assert attempts.wait_for_exit() == 1
    assert "none of the 2 checkpoints" in attempts.output
    assert format_checkpoint_name(8) in attempts.output
    assert compute_file_digests(attempts.run_dir.root) == before


def test_a_run_that_died_before_its_first_checkpoint_begins_again(attempts, assert_attempts_equal_reference):
    attempts.begin("--start=2", "--checkpoint-every=25 steps", args=("--paced-from=10",))
    attempts.wait_for_step(9)
    attempts.kill_everything()
    attempts.touch("gates")
    attempts.resume("--start=3")
    ended = attempts.wait_for_end()
    assert_attempts_equal_reference(ended)
    assert "starting again from the beginning; 9 steps are made again" in attempts.output


# -- restored state -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("script", "args"),
    [
        ("data_sources.py", ("stream", "--until=3 epochs")),
        ("data_sources.py", ("loaders",)),
        ("mixed.py", ("--end=patience",)),
    ],
    ids=["cursors of streams", "loaders", "scaler, plateau, keep and patience"],
)
def test_state_of_every_kind_is_restored(attempts, play_undisturbed, script, args):
    """The checkpoint is in mid-epoch, after changed scales and skipped steps, with patience half used up."""
    expected = play_undisturbed(script, *args)
    attempts.begin("--start=2", EVERY_FOUR, script=script, args=(*args, "--paced-from=10"))
    attempts.wait_for_event("checkpoint.saved", 2)
    attempts.kill_everything()
    attempts.touch("gates")
    attempts.resume("--start=3", "--copies=2")
    ended = attempts.wait_for_end()
    assert_equal(ended, expected)
    assert ended.find_events("run.resumed")[0].step == 8


# -- by the command line alone, with attempts that import all modules again ----------------------------------

SURVIVE = Path(__file__).parents[3] / "benchmarks" / "survive.py"


@pytest.mark.long
def test_three_histories_end_with_the_bytes_of_the_reference_run(first_seed):
    """The output of a failure names the command that repeats it."""
    command = [sys.executable, str(SURVIVE), f"--seed={first_seed + 1}", "--histories=3"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "3 of 3 histories" in done.stdout
