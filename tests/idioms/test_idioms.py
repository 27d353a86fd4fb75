"""Each idiom is exact whatever happens to the workers, or refused with a sentence."""

from pathlib import Path

import pytest
import torch

from elastane.agent.processes import Commands
from elastane.api.control import AskDrain
from elastane.api.errors import BadInput, RunFailed
from elastane.runtime import worker_settings
from tests.processes.stage import Stage, find_members, get_state

from .alone import train
from .catalogue import CATALOGUE, Idiom

pytestmark = pytest.mark.processes

SCRIPT = Path(__file__).parent / "scripts" / "idiom.py"
PACED_FROM = 3
VIRTUAL_RANKS = 4
NEVER = 1000


def every(
    *, are_refused: bool, are_sharded: bool | None = None, are_of_process: bool = False
) -> pytest.MarkDecorator:
    """Runs a test for each of these idioms, and each of their variants."""
    return pytest.mark.parametrize(
        ("idiom", "variant"),
        [
            pytest.param(idiom, variant, id=f"{idiom.name}-{variant}" if variant else idiom.name)
            for idiom in CATALOGUE.values()
            if bool(idiom.refusal) == are_refused
            and idiom.of_process == are_of_process
            and (are_sharded is None or are_sharded == (not idiom.unsharded))
            for variant in idiom.variants or ("",)
        ],
    )


@pytest.fixture(autouse=True)
def alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker_settings, "_settings", worker_settings.get_settings())
    torch.set_num_threads(1)


def play(stage, idiom: Idiom, variant: str, **options):
    arguments = [idiom.name, *([variant] if variant else []), f"--paced-from={PACED_FROM}"]
    return stage.play(*arguments, script=SCRIPT, max_workers=VIRTUAL_RANKS, digest_every=NEVER, **options)


def assert_same_as_alone(ended, idiom: Idiom, variant: str) -> None:
    assert ended.outcome.code == 0, ended.describe()
    trained = train(idiom, variant)
    assert ended.losses == trained.losses, ended.describe()
    *said, digest = ended.messages
    assert said == trained.said, ended.describe()
    assert digest == f"digest {trained.digest.parameters} {trained.digest.optimizer}", ended.describe()
    assert ended.verdict.problems == (), ended.describe()
    assert not ended.find_events("worker.failed"), ended.describe()


async def one_joins_and_the_first_dies(run) -> None:
    """Worker 1 joins; worker 0 is killed in the middle of a step; worker 2 takes its place."""
    await run.wait_for_step(PACED_FROM - 1)
    await run.resize(2)
    await run.wait_for_event("worker.ready", "worker 1")
    await run.step_until(lambda answer: find_members(answer) == {0, 1})
    # One step that both commit: a worker that dies at once could take the line of the last one with it.
    answer = await run.wait_until(lambda _: True)
    run.touch(f"gate-{answer.step + 1}")
    answer = await run.wait_for_step(answer.step + 1)
    run.touch("strike")
    run.touch(f"gate-{answer.step + 1}")
    await run.wait_for_event("worker.ready", "worker 2")
    await run.step_until(lambda answer: find_members(answer) == {1, 2})
    run.stop_pacing()


async def two_join_and_the_first_leaves(run) -> None:
    """Workers 1 and 2 join; worker 0 is drained."""
    await run.wait_for_step(PACED_FROM - 1)
    await run.resize(3)
    for joiner in (1, 2):
        await run.wait_for_event("worker.ready", f"worker {joiner}")
    await run.step_until(lambda answer: find_members(answer) == {0, 1, 2})
    answer = await run.ask(AskDrain(worker=0))
    assert answer.ok, answer.why
    await run.step_until(lambda answer: get_state(answer, 0) == "")
    run.stop_pacing()


@every(are_refused=False)
def test_it_is_exact_when_a_worker_joins_and_another_dies(stage, idiom, variant):
    ended = play(stage, idiom, variant, disturb=one_joins_and_the_first_dies)
    assert_same_as_alone(ended, idiom, variant)
    assert ended.find_subjects("worker.died") == ["worker 0"], ended.describe()


@every(are_refused=False, are_sharded=True)
def test_it_is_exact_when_sharded_state_moves(stage, idiom, variant):
    ended = play(stage, idiom, variant, disturb=two_join_and_the_first_leaves, copies=1)
    assert_same_as_alone(ended, idiom, variant)
    assert ended.find_events("worker.died") == [], ended.describe()


@pytest.fixture(scope="session")
def cold(home, tmp_path_factory) -> Stage:
    """Starts each run in processes of its own."""
    stage = Stage(tmp_path_factory.mktemp("cold"), Path())
    stage.commands = Commands()
    stage._runs = 1000  # other names than those of the other stage, in the same home
    return stage


@every(are_refused=False, are_of_process=True)
def test_it_is_exact_in_two_runs_that_share_no_process(cold, idiom, variant):
    reference = play(cold, idiom, variant, disturb=go)
    ended = play(cold, idiom, variant, disturb=one_joins_and_the_first_dies)
    assert ended.outcome.code == 0, ended.describe()
    assert ended.losses == reference.losses
    assert ended.messages == reference.messages


async def go(run) -> None:
    run.stop_pacing()


@every(are_refused=False, are_sharded=False)
def test_it_cannot_be_sharded_and_is_told_so(idiom, variant):
    with pytest.raises(BadInput) as refusal:
        train(idiom, variant, copies=1)
    assert idiom.unsharded in plain(str(refusal.value))


@every(are_refused=True)
def test_it_is_refused_alone(idiom, variant):
    with pytest.raises((BadInput, RunFailed)) as refusal:
        train(idiom, variant)
    assert idiom.refusal in plain(str(refusal.value))


@every(are_refused=True)
def test_it_is_refused_in_a_run_of_two_workers(stage, idiom, variant):
    ended = stage.play(
        idiom.name, *([variant] if variant else []), script=SCRIPT, max_workers=VIRTUAL_RANKS, start=2
    )
    assert ended.outcome.code != 0, ended.describe()
    assert idiom.refusal in plain(f"{ended.outcome.why} {ended.outcome.traceback}"), ended.describe()
    assert not ended.run.run_dir.model_files.weights.exists()


def plain(text: str) -> str:
    """In lower case and without line breaks."""
    return " ".join(text.lower().split())
