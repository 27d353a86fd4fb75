"""Caches of forward passes do not depend on the sequences that a worker happened to compute before."""

from functools import cache

import pytest

from .stage import find_members

pytestmark = pytest.mark.processes


@pytest.fixture(scope="module")
def play_alone(stage):
    """Return a function that trains one undisturbed worker, once for each model."""

    @cache
    def play(model):
        stage.preload("transformers.models.llama.modeling_llama")
        ended = stage.play(f"--model={model}", script="caches.py", digest_every=1)
        assert ended.outcome.code == 0, ended.describe()
        return ended

    return play


async def add_a_worker(running):
    await running.step_until(lambda answer: answer.step >= 4)
    await running.resize(2)
    await running.step_until(lambda answer: find_members(answer) == {0, 1}, patience_s=0.5)
    running.stop_pacing()


async def do_nothing(running):
    await running.wait_for_step(1)


@pytest.mark.parametrize("model", ["llama", "own", "late"])
@pytest.mark.parametrize(
    ("start", "disturb", "args"),
    [(2, do_nothing, ()), (3, do_nothing, ()), (1, add_a_worker, ("--paced-from=3",))],
)
def test_the_bytes_are_the_same_for_all_workers_and_joiners(stage, play_alone, model, start, disturb, args):
    expected = play_alone(model)
    ended = stage.play(
        f"--model={model}", *args, script="caches.py", start=start, disturb=disturb, digest_every=1
    )
    assert ended.outcome.code == 0, ended.describe()
    assert ended.losses == expected.losses
    assert ended.digests == expected.digests
    assert ended.messages == expected.messages
    assert ended.model_digest == expected.model_digest
