"""Streams and loader processes give each sample once and the same bytes while workers join, die and leave."""

import os
import signal
from functools import cache
from pathlib import Path

import pytest

from elastane.run.nouns.control import AskDrain
from tests.waiting import wait_until

from .stage import find_members, get_pid, get_state, is_alive

pytestmark = pytest.mark.processes


@pytest.fixture(scope="module")
def play_undisturbed(stage):
    """Return a function that trains one undisturbed worker, which reads datasets by itself."""

    @cache
    def play(way):
        ended = stage.play("stream" if way == "stream" else "here", script="data_sources.py")
        assert ended.outcome.code == 0, ended.describe()
        return ended

    return play


def assert_equal(ended, expected):
    assert ended.outcome.code == 0, ended.describe()
    assert ended.verdict.problems == (), ended.describe()
    assert ended.losses == expected.losses, ended.describe()
    assert ended.digests == expected.digests, ended.describe()
    assert ended.messages == expected.messages
    assert ended.model_digest == expected.model_digest


async def add_kill_and_drain_workers(run):
    """Worker 2 joins, worker 1 dies in the middle of a step, worker 2 is drained."""
    await run.wait_for_step(4)
    await run.resize(3)
    await run.wait_for_event("worker.ready", "worker 2")
    await run.step_until(lambda answer: 2 in find_members(answer))
    await run.step_until(lambda answer: get_state(answer, 1) == "" or answer.step >= 16)
    answer = await run.ask(AskDrain(worker=2))
    assert answer.ok
    await run.step_until(lambda answer: get_state(answer, 2) == "")
    run.stop_pacing()


@pytest.mark.parametrize("way", ["stream", "loaders"])
def test_a_join_a_kill_and_a_drain_change_no_byte(stage, play_undisturbed, way):
    ended = stage.play(
        way,
        "--paced-from=5",
        "--fault=1:14:in-backward",
        script="data_sources.py",
        disturb=add_kill_and_drain_workers,
        start=2,
    )
    assert_equal(ended, play_undisturbed(way))
    assert ended.find_subjects("worker.died") == ["worker 1"], ended.describe()
    assert "worker 2" in ended.find_subjects("worker.joined")
    assert "worker 2" in ended.find_subjects("worker.left")
    first = ended.verdict.epochs[0]
    assert (first.once, first.never, first.repeated, first.finished) == (205, 0, 0, True)


def test_a_run_over_a_stream_ends_after_its_epochs(stage):
    ended = stage.play("stream", "--until=2 epochs", script="data_sources.py", start=3)
    assert ended.outcome.code == 0, ended.describe()
    assert ended.verdict.problems == ()
    assert [(e.once, e.never, e.repeated, e.finished) for e in ended.verdict.epochs] == [
        (205, 0, 0, True)
    ] * 2


def list_children(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def test_a_worker_whose_loader_is_killed_is_replaced(stage, play_undisturbed):
    async def disturb(run):
        answer = await run.wait_for_step(4)
        loaders = list_children(get_pid(answer, "worker", 1))
        assert len(loaders) == 2
        os.kill(loaders[0], signal.SIGKILL)
        await run.wait_for_event("worker.died", "worker 1")
        wait_until(lambda: not any(map(is_alive, loaders)), "the loaders have ended with their worker")
        run.stop_pacing()

    ended = stage.play("loaders", "--paced-from=5", script="data_sources.py", disturb=disturb, start=2)
    assert_equal(ended, play_undisturbed("loaders"))
    assert "a loader process was killed" in ended.read_log("worker-1")
