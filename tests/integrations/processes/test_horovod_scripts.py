"""A script of Horovod Elastic with another import keeps its commits and its samples at every size."""

from collections import Counter

import msgspec
import pytest

from elastane.run.attempts.host_discovery import FollowedHosts
from elastane.run.observability.run_files import read_record
from tests.run.processes.worlds import EndedScript, LiveScript, play_script

pytestmark = pytest.mark.processes

SAMPLES = 96


@pytest.fixture(autouse=True)
def loaded_modules(stage):
    stage.preload("torch.distributed", "sklearn.datasets", "elastane.integrations.horovod")


def count_samples(ended: EndedScript) -> list[Counter[int]]:
    """Return how often each sample was trained on, of each epoch."""
    epochs = [Counter(), Counter(), Counter()]
    for note in ended.notes:
        if note.startswith("trained "):
            _, epoch, indices = note.split(" ")
            epochs[int(epoch)].update(map(int, indices.split(",")))
    return epochs


def check_each_sample_once_per_epoch(ended: EndedScript) -> None:
    once = Counter(range(SAMPLES))
    assert count_samples(ended) == [once, once, once], ended.describe()


def list_commits(run: LiveScript) -> set[str]:
    return {path.name for path in (run.run_dir.root / "horovod").glob("commit-*.pt")}


async def wait_for_signal(run: LiveScript, commits: set[str]) -> None:
    """Wait until a held process has got SIGTERM; it writes its last commit then, none of ``commits``."""
    await run.wait_until(lambda: bool(list_commits(run) - commits), "there is another commit")


def test_commits_and_samples_pass_from_one_size_to_the_next(stage, tmp_path):
    async def resize(run: LiveScript) -> None:
        await run.wait_for_note("batch 0-3")
        await run.resize(1)
        await wait_for_signal(run, set())
        run.release("hold-0-3")
        await run.wait_for_note("batch 1-5")
        commits = list_commits(run)
        await run.resize(2)
        await wait_for_signal(run, commits)
        run.release("hold-1-5")

    holds = ("hold-0-3", "hold-1-5")
    ended = play_script(stage, tmp_path, "horovod_digits.py", disturb=resize, holds=holds, start=2)
    assert ended.outcome.code == 0, ended.describe()
    check_each_sample_once_per_epoch(ended)
    starts = [note for note in ended.notes if note.startswith("start 0/")]
    # The batch after the announcement is committed by all, and counts.
    assert starts == ["start 0/2 from 0-0", "start 0/1 from 0-4", "start 0/2 from 1-6"]
    assert [note for note in ended.notes if note.startswith("reset 0/")] == ["reset 0/1", "reset 0/2"]
    assert ended.notes[-1] == "end 0.020 2", "the reset callback sets the learning rate of the new size"


def test_a_killed_process_takes_no_commit_and_no_sample_with_it(stage, tmp_path):
    async def kill(run: LiveScript) -> None:
        await run.wait_for_note("batch 1-4")
        # Rank 0, whose memory has what Horovod would synchronise from.
        await run.kill(0)
        await run.wait_for_event("stop.announced")
        run.release("hold-1-4")

    ended = play_script(stage, tmp_path, "horovod_digits.py", disturb=kill, holds=("hold-1-4",), start=2)
    assert ended.outcome.code == 0, ended.describe()
    check_each_sample_once_per_epoch(ended)
    starts = [note for note in ended.notes if note.startswith("start 0/")]
    assert starts == ["start 0/2 from 0-0", "start 0/2 from 1-4"]
    assert not list((ended.run_dir.root / "horovod").glob("commit-*"))


def test_a_host_discovery_script_sets_the_size_of_a_run(stage, tmp_path):
    remarks: list[str] = []
    hosts = tmp_path / "hosts"
    hosts.write_text("localhost:1\n")

    async def follow(run: LiveScript) -> None:
        spec = msgspec.structs.replace(read_record(run.run_dir).spec, host_discovery=f"cat '{hosts}'")
        with FollowedHosts(run.run_dir, spec, remarks.append):
            await run.wait_for_note("batch 0-3")
            hosts.write_text("localhost:2\nelsewhere:8\n")
            await wait_for_signal(run, set())
            run.release("hold-0-3")
            await run.wait_for_note("batch 1-2")
            hosts.write_text("this is no host\n")
            await run.wait_until(lambda: len(remarks) == 2, "there are two remarks")
            run.release("hold-1-2")

    holds = ("hold-0-3", "hold-1-2")
    ended = play_script(stage, tmp_path, "horovod_digits.py", disturb=follow, holds=holds)
    assert ended.outcome.code == 0, ended.describe()
    check_each_sample_once_per_epoch(ended)
    assert [note for note in ended.notes if note.startswith("start 0/")][1:] == ["start 0/2 from 0-4"]
    assert "host elsewhere is not this machine" in remarks[0]
    assert "'this is no host' is not HOST or HOST:SLOTS" in remarks[1]
