"""``elastane run`` of a tutorial's script with one changed line, while workers join and die."""

import pytest
import torch

from elastane.run.nouns.control import AskResize
from tests.run.processes.stage import find_members, kill

from .conftest import SCRIPTS

pytestmark = pytest.mark.processes

SCRIPT = str(SCRIPTS / "digits_one_line.py")
FILES = ["epoch=2-step=24.ckpt", "epoch=3-step=32.ckpt"]


@pytest.fixture(scope="module")
def undisturbed(play):
    ended = play(SCRIPT)
    assert ended.outcome.code == 0, ended.describe()
    return ended


def list_files(ended):
    return sorted(path.name for path in (ended.run.run_dir.root / "lightning").iterdir())


def assert_equals(ended, undisturbed, attempts):
    assert ended.outcome.code == 0, f"{ended.describe()}\n{attempts.output}"
    assert ended.losses == undisturbed.losses, ended.describe()
    assert ended.model_digest == undisturbed.model_digest
    assert [line.logged for line in ended.run.ledger] == [line.logged for line in undisturbed.run.ledger]
    assert list_files(ended) == list_files(undisturbed) == FILES
    for name in FILES:
        found, expected = (
            torch.load(run.run.run_dir.root / "lightning" / name, weights_only=False)["state_dict"]
            for run in (ended, undisturbed)
        )
        assert all(torch.equal(found[key], tensor) for key, tensor in expected.items())


def step_until(attempts, done):
    """Let a paced run make one step after the other until its status fulfils a condition."""
    while not done(attempts.status):
        following = attempts.status.step + 1
        attempts.touch(f"gate-{following}")
        attempts.wait_for_step(following)
    return attempts.status


def let_worker_2_join(attempts):
    attempts.wait_for_step(9)
    attempts.ask(AskResize(workers=3))
    attempts.wait_until(
        lambda: any(event.who == "worker 2" for event in attempts.find_events("worker.ready")),
        "worker 2 is ready",
    )
    return step_until(attempts, lambda answer: 2 in find_members(answer))


def test_a_worker_joins_and_one_is_killed_with_two_copies(attempts, undisturbed):
    attempts.begin("--start=2", "--copies=2", script=SCRIPT, args=("--paced-from=10",))
    kill(let_worker_2_join(attempts), "worker", 0)
    attempts.touch("gates")
    ended = attempts.wait_for_end()
    assert_equals(ended, undisturbed, attempts)
    assert ended.find_subjects("worker.died") == ["worker 0"]


@pytest.mark.long
def test_a_worker_joins_and_one_is_killed_with_one_copy(attempts, undisturbed):
    attempts.begin(
        *("--start=2", "--copies=1", "--checkpoint-every=4 steps"),
        script=SCRIPT,
        args=("--paced-from=10", "--whole"),
    )
    kill(let_worker_2_join(attempts), "worker", 0)
    attempts.touch("gates")
    if attempts.wait_for_exit():
        # This worker had the only copy of the optimizer's state.
        assert "optimizer" in attempts.output
        attempts.resume("--start=2")
    ended = attempts.wait_for_end()
    assert_equals(ended, undisturbed, attempts)
    assert any(message.startswith("note: with --copies N") for message in ended.messages)


def test_a_worker_that_dies_inside_a_checkpoint_file_leaves_no_half_file(attempts, undisturbed):
    attempts.begin("--start=2", script=SCRIPT, args=("--dies-in-checkpoint=1",))
    ended = attempts.wait_for_end()
    assert_equals(ended, undisturbed, attempts)
    assert ended.find_subjects("worker.died") == ["worker 1"]


def test_a_run_that_dies_inside_a_checkpoint_file_resumes_without_a_half_file(attempts, undisturbed):
    attempts.begin(
        *("--start=1", "--copies=1", "--checkpoint-every=7 steps"),
        script=SCRIPT,
        args=("--waits-in-checkpoint=3",),
    )
    attempts.wait_for_file("held")
    folder = attempts.run_dir.root / "lightning"
    names = {path.name for path in folder.iterdir()}
    assert FILES[0] not in names
    assert any(name.startswith(f".{FILES[0]}.") for name in names)
    attempts.kill_everything()
    attempts.resume("--start=2")
    assert_equals(attempts.wait_for_end(), undisturbed, attempts)
