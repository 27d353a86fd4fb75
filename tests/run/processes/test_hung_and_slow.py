"""A worker that hangs is replaced and a slow worker gets a smaller share; neither changes a bit."""

import os
import signal

import pytest

from .stage import get_pid

pytestmark = [pytest.mark.processes, pytest.mark.alone]


@pytest.mark.parametrize(
    "moment", ["in-backward", "before-vote", pytest.param("device-hangs", marks=pytest.mark.long)]
)
def test_a_worker_that_hangs_in_a_step_is_removed_and_the_others_finish_the_step(
    stage, assert_equals_reference, moment
):
    ended = stage.play(f"--fault=1:5:{moment}:STOP", start=3)
    assert_equals_reference(ended)
    (death,) = ended.find_events("worker.hung") + ended.find_events("worker.died")
    assert (death.kind, death.who) == ("worker.hung", "worker 1"), ended.describe()
    assert death.why.startswith("hung: no heartbeat for ")
    assert ended.get_shares(5).keys() == {0, 2}
    assert ended.count_computed(5, by=[0, 2]) == 8


def test_a_worker_that_stops_for_a_moment_is_not_hung(stage, assert_equals_reference):
    async def disturb(run):
        pid = get_pid(await run.wait_for_step(4), "worker", 1)
        os.kill(pid, signal.SIGSTOP)
        run.stop_pacing()
        os.kill(pid, signal.SIGCONT)

    ended = stage.play("--paced-from=5", disturb=disturb, start=2)
    assert_equals_reference(ended)
    assert ended.find_events("worker.hung") == ended.find_events("worker.died") == []


def test_a_worker_that_waits_for_its_data_is_not_hung_and_an_event_names_it(stage, assert_equals_reference):
    async def disturb(run):
        await run.wait_for_event("data.awaited", "worker 1")
        run.touch("data")

    ended = stage.play("--fault=1:5:data-late", disturb=disturb, start=2)
    assert_equals_reference(ended)
    assert ended.find_subjects("data.awaited") == ["worker 1"]
    assert ended.find_events("worker.hung") == ended.find_events("worker.died") == []


def test_a_worker_ten_times_slower_gets_fewer_virtual_ranks(stage, play_reference):
    """The run trains until the fast worker has 7 of the 8 virtual ranks, by one resize or by two."""

    async def disturb(run):
        await run.wait_for_share(0, 7)
        run.agent.stop()

    ended = stage.play("--steps=2000", "--seconds=0.008", disturb=disturb, start=2)
    assert ended.outcome.code == 130, ended.describe()
    assert ended.verdict.problems == ()
    assert ended.find_events("shares.rebalanced")
    assert {len(share) for share in ended.get_shares(1).values()} == {4}
    known = play_reference(len(ended.run.ledger))
    assert ended.losses == known.losses
