"""Each idiom is exact whatever happens to the workers, or refused with a sentence."""

from pathlib import Path

import pytest
import torch

from elastane.agent.processes import Commands
from elastane.api.control import AskDrain
from elastane.api.errors import BadInput, RunFailed
from elastane.runtime import worker_settings
from tests.processes.stage import Stage, member_states, state_of

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


def play(stage, idiom: Idiom, variant: str, **wishes):
    arguments = [idiom.name, *([variant] if variant else []), f"--paced-from={PACED_FROM}"]
    return stage.play(*arguments, script=SCRIPT, max_workers=VIRTUAL_RANKS, digest_every=NEVER, **wishes)


def assert_same_as_alone(ended, idiom: Idiom, variant: str) -> None:
    assert ended.over.code == 0, ended.story()
    trained = train(idiom, variant)
    assert ended.losses == trained.losses, ended.story()
    *said, digest = ended.said
    assert said == trained.said, ended.story()
    assert digest == f"digest {trained.digest.parameters} {trained.digest.optimizer}", ended.story()
    assert ended.verdict.problems == (), ended.story()
    assert not ended.events("worker.failed"), ended.story()


async def one_joins_and_the_first_dies(running) -> None:
    """Worker 1 joins; worker 0 is killed in the middle of a step; worker 2 takes its place."""
    await running.until_step(PACED_FROM - 1)
    await running.resize(2)
    await running.until_event("worker.ready", "worker 1")
    await running.pace(lambda answer: member_states(answer) == {0, 1})
    # One step that both commit: a worker that dies at once could take the line of the last one with it.
    answer = await running.until(lambda _: True)
    running.open(f"gate-{answer.step + 1}")
    answer = await running.until_step(answer.step + 1)
    running.open("strike")
    running.open(f"gate-{answer.step + 1}")
    await running.until_event("worker.ready", "worker 2")
    await running.pace(lambda answer: member_states(answer) == {1, 2})
    running.go()


async def two_join_and_the_first_leaves(running) -> None:
    """Workers 1 and 2 join; worker 0 is drained."""
    await running.until_step(PACED_FROM - 1)
    await running.resize(3)
    for joiner in (1, 2):
        await running.until_event("worker.ready", f"worker {joiner}")
    await running.pace(lambda answer: member_states(answer) == {0, 1, 2})
    answer = await running.ask(AskDrain(worker=0))
    assert answer.ok, answer.why
    await running.pace(lambda answer: state_of(answer, 0) == "")
    running.go()


@every(are_refused=False)
def test_it_is_exact_when_a_worker_joins_and_another_dies(stage, idiom, variant):
    ended = play(stage, idiom, variant, story=one_joins_and_the_first_dies)
    assert_same_as_alone(ended, idiom, variant)
    assert ended.who("worker.died") == ["worker 0"], ended.story()


@every(are_refused=False, are_sharded=True)
def test_it_is_exact_when_sharded_state_moves(stage, idiom, variant):
    ended = play(stage, idiom, variant, story=two_join_and_the_first_leaves, copies=1)
    assert_same_as_alone(ended, idiom, variant)
    assert ended.events("worker.died") == [], ended.story()


@pytest.fixture(scope="session")
def cold(home, tmp_path_factory) -> Stage:
    """Starts each run in processes of its own."""
    stage = Stage(tmp_path_factory.mktemp("cold"), Path())
    stage.commands = Commands()
    stage._runs = 1000  # other names than those of the other stage, in the same home
    return stage


@every(are_refused=False, are_of_process=True)
def test_it_is_exact_in_two_runs_that_share_no_process(cold, idiom, variant):
    quiet = play(cold, idiom, variant, story=go)
    ended = play(cold, idiom, variant, story=one_joins_and_the_first_dies)
    assert ended.over.code == 0, ended.story()
    assert ended.losses == quiet.losses
    assert ended.said == quiet.said


async def go(running) -> None:
    running.go()


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
    assert ended.over.code != 0, ended.story()
    assert idiom.refusal in plain(f"{ended.over.why} {ended.over.traceback}"), ended.story()
    assert not ended.run.run_dir.model_files.weights.exists()


def plain(text: str) -> str:
    """In lower case and without line breaks."""
    return " ".join(text.lower().split())
