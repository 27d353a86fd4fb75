"""Workers of several processes: every number of workers and of processes gives the same bytes."""

import pytest

from elastane.run.nouns.control import AskDrain

from .stage import find_members, get_state

pytestmark = pytest.mark.processes
MODULES = ("torch.distributed.fsdp", "torch.distributed.device_mesh")


@pytest.fixture
def play(stage):
    """Return a function that plays the script of gangs."""
    stage.preload(*MODULES)

    def play(*args, processes=2, start=1, **options):
        options = {"max_workers": max(start, 8 // processes), "digest_every": 2} | options
        return stage.play(*args, script="gang.py", start=start, processes=processes, **options)

    return play


def assert_equal(ended, expected, *, digests=True):
    assert ended.outcome.code == 0, ended.describe()
    assert ended.losses == expected.losses, ended.describe()
    assert ended.messages == expected.messages, ended.describe()
    assert ended.model_digest == expected.model_digest, ended.describe()
    assert ended.verdict.problems == (), ended.describe()
    assert not ended.find_events("worker.failed"), ended.describe()
    if digests:
        # They describe the shards, so they are equal for equal numbers of processes.
        assert ended.digests == expected.digests, ended.describe()


def test_numbers_of_workers_and_of_processes_give_the_bytes_of_one_process(play):
    alone = play(processes=1)
    assert len(alone.losses) == 6
    assert_equal(play(processes=2, start=2), alone, digests=False)
    assert_equal(play(processes=4, start=1), alone, digests=False)


@pytest.fixture(scope="module")
def references():
    """Runs of one undisturbed worker of two processes, by their arguments."""
    return {}


@pytest.fixture
def assert_undisturbed(play, references):
    """Return a function that asserts that a run has the bytes of an undisturbed one of one worker."""

    def check(ended, *args):
        if args not in references:
            references[args] = play(*args)
        assert_equal(ended, references[args])

    return check


def test_workers_of_two_processes_join_and_leave(play, assert_undisturbed):
    async def disturb(run):
        await run.wait_for_step(2)
        await run.resize(2)
        await run.wait_for_event("worker.ready", "worker 1")
        await run.step_until(lambda answer: find_members(answer) == {0, 1})
        # Worker 1 goes on with the state that it has got from worker 0.
        assert (await run.ask(AskDrain(worker=0))).ok
        await run.step_until(lambda answer: get_state(answer, 0) == "")
        run.stop_pacing()

    ended = play("--steps=40", "--paced-from=3", "--edit", disturb=disturb)
    assert ended.get_shares(1).keys() == {0}
    assert ended.get_shares(40).keys() == {1}
    assert_undisturbed(ended, "--steps=40", "--edit")


STEP = 4
IN_A_STEP = [
    ("1", "in-backward"),
    ("1", "before-compute"),
    ("1", "before-begin"),
    ("1", "before-delivery"),
    ("1", "before-reduce"),
    ("1", "after-reduce"),
    ("1", "before-taking"),
    ("1", "after-taking"),
    ("1", "before-measure"),
    ("1", "after-measure"),
    ("1", "before-commit"),
    ("1", "before-apply-here"),
    ("1", "after-apply-here"),
    ("0", "in-backward"),
    ("0", "after-first-ready"),
    ("0", "after-first-sum"),
    ("0", "after-first-summed"),
    ("0", "before-vote"),
    ("0", "after-one-vote"),
]
SHORT = {("1", "in-backward"), ("1", "after-measure")}


@pytest.mark.parametrize(
    ("process", "moment"),
    [case if case in SHORT else pytest.param(*case, marks=pytest.mark.long) for case in IN_A_STEP],
)
def test_the_death_of_a_process_in_a_step_is_the_death_of_its_worker(
    play, assert_undisturbed, process, moment
):
    ended = play("--clip=0.5", f"--fault=1.{process}:{STEP}:{moment}", start=2, max_workers=4)
    deaths = [(event.who, event.why) for event in ended.find_events("worker.died")]
    assert [who for who, _ in deaths] == ["worker 1"], ended.describe()
    assert "killed by SIGKILL" in deaths[0][1]
    assert_undisturbed(ended, "--clip=0.5")
