"""Each idiom is exact while workers join, die and leave, or it is refused."""

import itertools
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from elastane.common.errors import BadInput, RunFailed
from elastane.run.agent.processes import Commands
from elastane.run.nouns.control import AskDrain
from elastane.run.worker import worker_settings
from tests.run.processes.stage import Stage, find_members, get_state

from .alone import train
from .catalogue import CATALOGUE, Idiom

pytestmark = pytest.mark.processes

SCRIPT = Path(__file__).parent / "scripts" / "idiom.py"
PACED_FROM = 3
VIRTUAL_RANKS = 4
NEVER = 1000
ABOUT_STATE = {"between_steps", "kept", "optimizers", "schedules"}
TRANSFORMERS = tuple(f"transformers.models.{kind}.modeling_{kind}" for kind in ("bert", "gpt2", "llama"))
"""Modules that each worker would import for seconds."""


def parametrize_idioms(
    *,
    are_refused: bool,
    are_sharded: bool | None = None,
    are_of_process: bool = False,
    is_usual: Callable[[Idiom, str], bool] = lambda _idiom, _variant: True,
    one_in: int = 1,
) -> pytest.MarkDecorator:
    """Run a test for each of these idioms, and each of their variants; some only in `make test-long`.

    Args:
        are_refused: the idioms are refused, not exact.
        are_sharded: the idioms can be sharded, or cannot; None: either.
        are_of_process: the bytes depend on the start of the process.
        is_usual: whether `make test` may run an idiom and variant.
        one_in: `make test` runs one in this number of the usual ones.
    """
    turns = itertools.count()
    return pytest.mark.parametrize(
        ("idiom", "variant"),
        [
            pytest.param(
                idiom,
                variant,
                id=f"{idiom.name}-{variant}" if variant else idiom.name,
                marks=() if is_usual(idiom, variant) and next(turns) % one_in == 0 else pytest.mark.long,
            )
            for idiom in CATALOGUE.values()
            if bool(idiom.refusal) == are_refused
            and idiom.of_process == are_of_process
            and (are_sharded is None or are_sharded == (not idiom.unsharded))
            for variant in idiom.variants or ("",)
        ],
    )


def is_about_state(idiom: Idiom) -> bool:
    """Return whether the subject of an idiom is the state itself, which moves when it is sharded."""
    return idiom.module in ABOUT_STATE and not idiom.unsharded


def is_first_variant(idiom: Idiom, variant: str) -> bool:
    return variant in ("", *idiom.variants[:1])


@pytest.fixture(autouse=True)
def alone(frozen_heap: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker_settings, "_settings", worker_settings.get_settings())
    torch.set_num_threads(1)


def play(stage, idiom: Idiom, variant: str, **options):
    if idiom.name.startswith("transformers"):
        stage.preload(*TRANSFORMERS)
    arguments = [idiom.name, *([variant] if variant else []), f"--paced-from={PACED_FROM}"]
    return stage.play(*arguments, script=SCRIPT, max_workers=VIRTUAL_RANKS, digest_every=NEVER, **options)


def assert_same_as_alone(ended, idiom: Idiom, variant: str) -> None:
    assert ended.outcome.code == 0, ended.describe()
    trained = train(idiom, variant)
    assert ended.losses == trained.losses, ended.describe()
    *prints, digest = ended.messages
    assert prints == trained.prints, ended.describe()
    assert digest == f"digest {trained.digest.parameters} {trained.digest.optimizer}", ended.describe()
    assert ended.verdict.problems == (), ended.describe()
    assert not ended.find_events("worker.failed"), ended.describe()


async def replace_killed_worker(run) -> None:
    """Worker 1 joins; worker 0 is killed in the middle of a step; worker 2 takes its place."""
    await run.wait_for_step(PACED_FROM - 1)
    await run.resize(2)
    await run.wait_for_event("worker.ready", "worker 1")
    await run.step_until(lambda answer: find_members(answer) == {0, 1})
    # Both commit one step: the ledger line of the last step could be lost with a worker that dies at once.
    answer = await run.wait_until(lambda _: True)
    run.touch(f"gate-{answer.step + 1}")
    answer = await run.wait_for_step(answer.step + 1)
    run.touch("strike")
    run.touch(f"gate-{answer.step + 1}")
    await run.wait_for_event("worker.ready", "worker 2")
    await run.step_until(lambda answer: find_members(answer) == {1, 2})
    run.stop_pacing()


async def drain_first_of_three(run) -> None:
    """Workers 1 and 2 join; worker 0 is drained."""
    await run.wait_for_step(PACED_FROM - 1)
    await run.resize(3)
    for joiner in (1, 2):
        await run.wait_for_event("worker.ready", f"worker {joiner}")
    await run.step_until(lambda answer: find_members(answer) == {0, 1, 2}, patience_s=0.3)
    answer = await run.ask(AskDrain(worker=0))
    assert answer.ok, answer.why
    await run.step_until(lambda answer: get_state(answer, 0) == "", patience_s=0.3)
    run.stop_pacing()


@parametrize_idioms(
    are_refused=False,
    is_usual=lambda idiom, variant: not is_about_state(idiom) and is_first_variant(idiom, variant),
    one_in=3,
)
def test_an_idiom_is_exact_when_a_worker_joins_and_another_one_dies(stage, idiom, variant):
    ended = play(stage, idiom, variant, disturb=replace_killed_worker)
    assert_same_as_alone(ended, idiom, variant)
    assert ended.find_subjects("worker.died") == ["worker 0"], ended.describe()


@parametrize_idioms(
    are_refused=False,
    are_sharded=True,
    is_usual=lambda idiom, variant: is_about_state(idiom) and is_first_variant(idiom, variant),
    one_in=3,
)
def test_an_idiom_is_exact_when_sharded_state_moves(stage, idiom, variant):
    ended = play(stage, idiom, variant, disturb=drain_first_of_three, copies=1)
    assert_same_as_alone(ended, idiom, variant)
    assert ended.find_events("worker.died") == [], ended.describe()


@pytest.fixture(scope="session")
def cold(home, tmp_path_factory) -> Stage:
    """Return a stage that starts each run in processes of its own."""
    stage = Stage(tmp_path_factory.mktemp("cold"), Path())
    stage.commands = Commands()
    stage._runs = 1000  # other names than those of the other stage, in the same home
    return stage


@pytest.mark.long
@parametrize_idioms(are_refused=False, are_of_process=True)
def test_an_idiom_is_exact_in_two_runs_that_share_no_process(cold, idiom, variant):
    reference = play(cold, idiom, variant, disturb=release_all_steps)
    ended = play(cold, idiom, variant, disturb=replace_killed_worker)
    assert ended.outcome.code == 0, ended.describe()
    assert ended.losses == reference.losses
    assert ended.messages == reference.messages


async def release_all_steps(run) -> None:
    run.stop_pacing()


@parametrize_idioms(are_refused=False, are_sharded=False)
def test_an_idiom_that_cannot_be_sharded_is_refused_with_copies(idiom, variant):
    with pytest.raises(BadInput) as refusal:
        train(idiom, variant, copies=1)
    assert idiom.unsharded in normalise_text(str(refusal.value))


@parametrize_idioms(are_refused=True)
def test_an_idiom_is_refused_alone(idiom, variant):
    with pytest.raises((BadInput, RunFailed)) as refusal:
        train(idiom, variant)
    assert idiom.refusal in normalise_text(str(refusal.value))


@parametrize_idioms(are_refused=True, is_usual=is_first_variant, one_in=3)
def test_an_idiom_is_refused_in_a_run_of_two_workers(stage, idiom, variant):
    ended = stage.play(
        idiom.name, *([variant] if variant else []), script=SCRIPT, max_workers=VIRTUAL_RANKS, start=2
    )
    assert ended.outcome.code != 0, ended.describe()
    assert idiom.refusal in normalise_text(f"{ended.outcome.why} {ended.outcome.traceback}"), ended.describe()
    assert not ended.run.run_dir.model_files.weights.exists()


def normalise_text(text: str) -> str:
    """Return the text in lower case and without line breaks."""
    return " ".join(text.lower().split())
