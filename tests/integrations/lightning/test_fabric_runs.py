"""A Fabric script ends with the same bytes whatever happens to its workers."""

import signal

import pytest
import torch

from tests.run.processes.stage import find_members, kill

from .conftest import SCRIPTS

pytestmark = pytest.mark.processes

SCRIPT = "digits_fabric.py"


def read_weights(folder):
    return {path.name: torch.load(path)["model"] for path in sorted(folder.glob("epoch-*.ckpt"))}


def assert_same_files(folder, expected):
    found, reference = read_weights(folder), read_weights(expected)
    assert len(reference) == 3
    assert found.keys() == reference.keys()
    for name, weights in reference.items():
        assert all(torch.equal(found[name][key], tensor) for key, tensor in weights.items()), name


@pytest.fixture(scope="module")
def expected(play, tmp_path_factory):
    folder = tmp_path_factory.mktemp("undisturbed")
    return play(SCRIPT, f"--folder={folder}"), folder


def test_a_worker_joins_in_a_later_epoch_and_another_is_killed(play, expected, assert_equal, tmp_path):
    async def disturb(run):
        await run.wait_for_step(27)
        await run.resize(3)
        await run.wait_for_event("worker.ready", "worker 2")
        answer = await run.step_until(lambda answer: 2 in find_members(answer))
        kill(answer, "worker", 0, signal.SIGKILL)
        run.stop_pacing()

    ended = play(SCRIPT, f"--folder={tmp_path}", "--paced-from=28", disturb=disturb, start=2)
    reference, folder = expected
    assert_equal(ended, reference)
    assert_same_files(tmp_path, folder)
    assert ended.find_events("worker.died")


@pytest.mark.long
def test_a_fabric_run_whose_processes_all_die_resumes(attempts, expected, tmp_path):
    reference, folder = expected
    arguments = ("--paced-from=38", f"--folder={tmp_path}")
    script = str(SCRIPTS / SCRIPT)
    attempts.begin("--start=2", "--checkpoint-every=7 steps", script=script, args=arguments)
    attempts.wait_for_event("checkpoint.saved", 5)
    attempts.touch("gates")
    attempts.kill_everything()
    attempts.resume("--start=1")
    ended = attempts.wait_for_end()
    assert ended.outcome.code == 0, ended.describe()
    assert ended.losses == reference.losses, ended.describe()
    assert ended.model_digest == reference.model_digest
    assert ended.messages[-2:] == reference.messages[-2:]
    assert_same_files(tmp_path, folder)
