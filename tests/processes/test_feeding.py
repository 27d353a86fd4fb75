"""Whatever feeds a run, and whoever comes and goes, every sample counts once and the bytes are the same."""

import os
import signal
from functools import cache
from pathlib import Path

import pytest

from elastane.api.control import AskDrain

from .stage import alive, eventually, member_states, pid_of, state_of

pytestmark = pytest.mark.processes


@pytest.fixture(scope="module")
def quietly(stage):
    """A run of one worker to which nothing happens; a dataset is read by the worker itself."""

    @cache
    def play(way):
        ended = stage.play("stream" if way == "stream" else "here", script="feeding.py")
        assert ended.over.code == 0, ended.story()
        return ended

    return play


def assert_equal(ended, expected):
    assert ended.over.code == 0, ended.story()
    assert ended.verdict.problems == (), ended.story()
    assert ended.losses == expected.losses, ended.story()
    assert ended.digests == expected.digests, ended.story()
    assert ended.said == expected.said
    assert ended.model == expected.model


async def changes(running):
    """One joins, one dies in the middle of a step, one is drained."""
    await running.until_step(4)
    await running.resize(3)
    await running.until_event("worker.ready", "worker 2")
    await running.pace(lambda answer: 2 in member_states(answer))
    await running.pace(lambda answer: state_of(answer, 1) == "" or answer.step >= 16)
    answer = await running.ask(AskDrain(worker=2))
    assert answer.ok
    await running.pace(lambda answer: state_of(answer, 2) == "")
    running.go()


@pytest.mark.parametrize("way", ["stream", "loaders"])
def test_a_join_a_kill_and_a_drain_change_no_byte(stage, quietly, way):
    ended = stage.play(
        way,
        "--paced-from=5",
        "--fault=1:14:in-backward",
        script="feeding.py",
        story=changes,
        start=2,
    )
    assert_equal(ended, quietly(way))
    assert ended.who("worker.died") == ["worker 1"], ended.story()
    assert "worker 2" in ended.who("worker.joined")
    assert "worker 2" in ended.who("worker.left")
    first = ended.verdict.epochs[0]
    assert (first.once, first.never, first.repeated, first.finished) == (205, 0, 0, True)


def test_a_run_over_a_stream_ends_after_its_epochs(stage):
    ended = stage.play("stream", "--until=2 epochs", script="feeding.py", start=3)
    assert ended.over.code == 0, ended.story()
    assert ended.verdict.problems == ()
    assert [(e.once, e.never, e.repeated, e.finished) for e in ended.verdict.epochs] == [
        (205, 0, 0, True)
    ] * 2


def children(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def test_a_worker_whose_loader_is_killed_is_replaced(stage, quietly):
    async def story(running):
        answer = await running.until_step(4)
        loaders = children(pid_of(answer, "worker", 1))
        assert len(loaders) == 2
        os.kill(loaders[0], signal.SIGKILL)
        await running.until_event("worker.died", "worker 1")
        eventually(lambda: not any(map(alive, loaders)), "loaders end with their worker")
        running.go()

    ended = stage.play("loaders", "--paced-from=5", script="feeding.py", story=story, start=2)
    assert_equal(ended, quietly("loaders"))
    assert "a loader process was killed" in ended.log("worker-1")
