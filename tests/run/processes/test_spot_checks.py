"""Spot checks find a worker with a flipped bit in one gradient and end it; the trained bytes are the same."""

import pytest

from elastane.run.nouns.records import SPOT_CHECK_FAILED

pytestmark = pytest.mark.processes
EVERY_WAY = [{"copies": None}, {"copies": 2}, {"transport": "tcp"}]
NAME = "4.weight"


def read_log(ended, worker):
    return ended.run.run_dir.node_files.log(f"worker-{worker}").read_text()


@pytest.mark.parametrize("way", EVERY_WAY)
@pytest.mark.parametrize("worker", [0, 2])
def test_a_worker_with_a_flipped_bit_ends_and_the_others_train_the_same_bytes(
    stage, assert_equals_reference, way, worker
):
    ended = stage.play(f"--flip={worker}:6", start=3, spot_checks="every", **way)
    assert_equals_reference(ended)
    (found,) = ended.find_events(SPOT_CHECK_FAILED)
    assert found.who == f"worker {worker}"
    assert f"has other gradients on worker {worker} than on worker" in found.why
    assert f"first in {NAME}" in found.why
    (died,) = ended.find_events("worker.died")
    assert died.who == f"worker {worker}"
    assert "a spot check found its results wrong" in died.why
    assert len(ended.find_events("worker.joined")) == 3, "it is not replaced"
    assert f"virtual rank {found.why.split()[2]}" in read_log(ended, worker)


def test_of_two_workers_the_one_that_contradicts_itself_ends(stage, assert_equals_reference):
    ended = stage.play("--flip=1:6:once", start=2, spot_checks="every")
    assert_equals_reference(ended)
    assert ended.find_subjects(SPOT_CHECK_FAILED) == ["worker 1"]


@pytest.mark.parametrize("way", EVERY_WAY)
def test_a_wrong_result_of_a_worker_that_dies_before_its_check_is_in_no_step(
    stage, assert_equals_reference, way
):
    """Whole sums with it are on other workers already. Step 6 checks this worker for any shares."""
    ended = stage.play("--flip=1:6", "--fault=1:6:before-vote", start=3, spot_checks="every", **way)
    assert_equals_reference(ended)
    assert ended.find_subjects("worker.died") == ["worker 1"]
    assert not ended.find_events(SPOT_CHECK_FAILED)
    assert ended.count_computed(6, by=[0, 2]) > 8, "the step is repeated"


def test_two_workers_that_differ_for_good_end_the_run(stage):
    ended = stage.play("--flip=1:6", start=2, spot_checks="every")
    assert ended.outcome.code == 1
    assert f"has other gradients on worker 0 than on worker 1, first in {NAME}" in ended.outcome.why
    assert 5 <= len(ended.run.ledger) < 30


def test_a_newcomer_that_differs_from_the_only_other_worker_ends_the_run(stage):
    async def disturb(run):
        await run.wait_for_step(1)
        await run.resize(2)
        await run.wait_for_event("worker.ready", "worker 1")
        run.stop_pacing()

    ended = stage.play("--flip=1:1", "--paced-from=3", disturb=disturb)
    assert ended.outcome.code == 1
    assert "worker 0 than on worker 1" in ended.outcome.why
    assert "run.keep" in ended.outcome.traceback


def test_the_first_steps_of_newcomers_are_checked_and_then_few(stage, assert_equals_reference):
    ended = stage.play(start=2)
    assert_equals_reference(ended)
    assert [line.step for line in ended.run.ledger if line.agreed] == [1, 2, 3]


def test_a_run_without_spot_checks_makes_none(stage, assert_equals_reference):
    ended = stage.play(start=2, spot_checks="off")
    assert_equals_reference(ended)
    assert not any(line.agreed for line in ended.run.ledger)
