"""A Trainer of Lightning ends with the same bytes whatever happens to its workers."""

import signal

import pytest
import torch

from elastane.run.nouns.control import AskDrain
from tests.run.processes.attempts import play_from_checkpoint
from tests.run.processes.stage import find_members, get_state, kill

from .conftest import SCRIPTS

pytestmark = pytest.mark.processes

SCRIPT = "digits_trainer.py"


def read_checkpoints(folder):
    return {path.name: torch.load(path, weights_only=False) for path in sorted(folder.glob("*.ckpt"))}


def assert_same_checkpoints(folder, expected):
    found, reference = read_checkpoints(folder), read_checkpoints(expected)
    assert found.keys() == reference.keys()
    for name, content in reference.items():
        assert found[name]["global_step"] == content["global_step"]
        assert found[name]["state_dict"].keys() == content["state_dict"].keys()
        for key, tensor in content["state_dict"].items():
            assert torch.equal(found[name]["state_dict"][key], tensor), (name, key)
        assert str(found[name]["lr_schedulers"]) == str(content["lr_schedulers"])


def test_workers_join_and_leave(play, play_reference, assert_equal):
    async def disturb(run):
        await run.wait_for_step(4)
        await run.resize(3)
        await run.wait_for_event("worker.ready", "worker 2")
        await run.step_until(lambda answer: 2 in find_members(answer))
        answer = await run.ask(AskDrain(worker=0))
        assert answer.ok
        await run.step_until(lambda answer: get_state(answer, 0) == "")
        run.stop_pacing()

    ended = play(SCRIPT, "--paced-from=5", disturb=disturb, start=2)
    expected = play_reference(SCRIPT)
    assert_equal(ended, expected)
    assert_same_checkpoints(ended.run.run_dir.root / "lightning", expected.run.run_dir.root / "lightning")
    assert ended.get_shares(72).keys() == {1, 2}


EPOCHS = {("--plateau",): 24, ("--accumulate=4",): 6, ("--limit=10",): 10}
"""The steps of an epoch, by arguments of the script."""


@pytest.mark.parametrize(("arguments", "steps"), EPOCHS.items(), ids=str)
def test_a_worker_joins_after_an_epoch_and_another_is_killed(
    play, play_reference, assert_equal, arguments, steps
):

    async def disturb(run):
        await run.wait_for_step(steps + 1)
        await run.resize(3)
        await run.wait_for_event("worker.ready", "worker 2")
        answer = await run.step_until(lambda answer: 2 in find_members(answer))
        kill(answer, "worker", 0, signal.SIGKILL)
        run.stop_pacing()

    ended = play(SCRIPT, f"--paced-from={steps + 2}", *arguments, disturb=disturb, start=2, max_workers=4)
    expected = play_reference(SCRIPT, *arguments, max_workers=4)
    assert_equal(ended, expected)
    assert_same_checkpoints(ended.run.run_dir.root / "lightning", expected.run.run_dir.root / "lightning")
    assert ended.find_events("worker.died")


def test_a_worker_without_a_microbatch_agrees_with_the_others(play, play_reference, assert_equal):
    # The last of the four steps of an epoch has two microbatches, and a validation comes before it.
    arguments = ("--samples=202", "--validate-every=0.5")
    ended = play(SCRIPT, *arguments, start=3, max_workers=4)
    assert_equal(ended, play_reference(SCRIPT, *arguments, max_workers=4))
    assert any(ranks.isdisjoint({0, 1}) for ranks in ended.get_shares(4).values())


def test_early_stopping_ends_a_run_of_two_workers_at_the_same_step(play, play_reference, assert_equal):
    arguments = ("--epochs=6", "--patience=1", "--min-delta=9")
    ended = play(SCRIPT, *arguments, start=2)
    assert_equal(ended, play_reference(SCRIPT, *arguments))
    # Two epochs: the second one is not better by 9.
    assert len(ended.run.ledger) == 48


def test_a_run_whose_processes_all_die_resumes(attempts, play_reference):
    expected = play_reference(SCRIPT)
    attempts.begin(
        "--start=2", "--checkpoint-every=7 steps", script=str(SCRIPTS / SCRIPT), args=("--paced-from=38",)
    )
    attempts.wait_for_event("checkpoint.saved", 5)
    attempts.touch("gates")
    attempts.kill_everything()
    attempts.resume("--start=1")
    ended = attempts.wait_for_end()
    assert ended.outcome.code == 0, ended.describe()
    assert ended.losses == expected.losses, ended.describe()
    assert ended.model_digest == expected.model_digest
    assert ended.messages[-3:] == expected.messages[-3:]
    assert_same_checkpoints(ended.run.run_dir.root / "lightning", expected.run.run_dir.root / "lightning")


@pytest.mark.long
def test_a_run_begins_from_a_step_of_another_one(stage, tmp_path, play_reference):
    expected = play_reference(SCRIPT)
    ended = play_from_checkpoint(stage, tmp_path, str(SCRIPTS / SCRIPT), step=34)
    assert ended.outcome.code == 0, ended.describe()
    assert ended.losses == expected.losses[34:], ended.describe()
    assert ended.model_digest == expected.model_digest
    assert ended.verdict.problems == (), ended.describe()
