"""A worker that stands still is ended; one that is slow is given less. Neither changes a bit."""

import os
import signal

import pytest

from .stage import pid_of

pytestmark = [pytest.mark.processes, pytest.mark.alone]


@pytest.mark.parametrize("moment", ["in-backward", "before-vote"])
def test_a_worker_that_stops_in_a_step_is_found_and_its_step_is_finished(stage, assert_undisturbed, moment):
    ended = stage.play(f"--fault=1:5:{moment}:STOP", start=3)
    assert_undisturbed(ended)
    (told,) = ended.events("worker.hung") + ended.events("worker.died")
    assert (told.kind, told.who) == ("worker.hung", "worker 1"), ended.story()
    assert told.why.startswith("hung: no heartbeat for ")
    assert ended.shares(5).keys() == {0, 2}
    assert ended.computed(5, by=[0, 2]) == 8


def test_a_worker_that_is_continued_before_anybody_minds_goes_on(stage, assert_undisturbed):
    async def story(running):
        pid = pid_of(await running.until_step(4), "worker", 1)
        os.kill(pid, signal.SIGSTOP)
        running.go()
        os.kill(pid, signal.SIGCONT)

    ended = stage.play("--paced-from=5", story=story, start=2)
    assert_undisturbed(ended)
    assert ended.events("worker.hung") == ended.events("worker.died") == []


def test_a_worker_that_waits_for_its_data_is_not_hung_and_the_run_says_that_it_waits(
    stage, assert_undisturbed
):
    async def story(running):
        await running.until_event("data.awaited", "worker 1")
        running.open("data")

    ended = stage.play("--fault=1:5:data-late", story=story, start=2)
    assert_undisturbed(ended)
    assert ended.who("data.awaited") == ["worker 1"]
    assert ended.events("worker.hung") == ended.events("worker.died") == []


def test_a_worker_ten_times_slower_gets_fewer_virtual_ranks(stage, quiet):
    """The run trains until the fast worker has 7 of the 8 virtual ranks, by one resize or by two."""

    async def story(running):
        await running.until_share(0, 7)
        running.agent.stop()

    ended = stage.play("--steps=2000", "--seconds=0.004", story=story, start=2)
    assert ended.over.code == 130, ended.story()
    assert ended.verdict.problems == ()
    assert ended.events("shares.rebalanced")
    assert {len(share) for share in ended.shares(1).values()} == {4}
    known = quiet(len(ended.run.ledger))
    assert ended.losses == known.losses
