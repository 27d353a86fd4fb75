"""A worker dies in a round of an evaluation, or in the settling at the end; no byte changes."""

import pytest

from elastane.run.nouns.rundir import GATHERED

from .ways import OPPOSITE_WAYS, pair_with_ways

pytestmark = pytest.mark.processes

EVALUATED_STEP, LAST_STEP = 7, 30


@pytest.mark.parametrize("number", [1, pytest.param(0, marks=pytest.mark.long)])
@pytest.mark.parametrize(
    ("moment", "way"),
    pair_with_ways(
        ["in-evaluation", "before-vote-on-evaluation", "after-one-vote-on-evaluation"], OPPOSITE_WAYS
    ),
)
def test_a_worker_may_die_in_an_evaluation(stage, assert_equals_reference, moment, number, way):
    ended = stage.play(f"--fault={number}:0:{moment}", start=3, **way)
    assert_equals_reference(ended)
    assert ended.find_subjects("worker.died") == [f"worker {number}"], ended.describe()
    assert number in ended.get_shares(EVALUATED_STEP)
    assert number not in ended.get_shares(EVALUATED_STEP + 1)
    assert len(ended.find_events("evaluation")) == 1
    assert not (ended.run.run_dir.root / GATHERED).exists()


def test_tensors_of_an_evaluation_that_are_lost_are_computed_again(stage, assert_equals_reference):
    ended = stage.play("--lose-gathered", start=3)
    assert_equals_reference(ended)
    assert not (ended.run.run_dir.root / GATHERED).exists()


def test_an_evaluation_after_the_last_step_has_the_outputs_of_one_worker(stage):
    alone, together = (stage.play("--evaluate-at-end", start=start) for start in (1, 3))
    assert together.outcome.code == 0, together.describe()
    assert len([message for message in together.messages if message.startswith("predicted")]) == 2
    assert together.messages == alone.messages
    assert together.digests == alone.digests
    assert not (together.run.run_dir.root / GATHERED).exists()


@pytest.mark.parametrize("number", [1, pytest.param(0, marks=pytest.mark.long)])
@pytest.mark.parametrize(
    ("moment", "way"), pair_with_ways(["before-vote-on-the-end", "after-one-vote-on-the-end"], OPPOSITE_WAYS)
)
def test_a_worker_may_die_in_the_settling_at_the_end(stage, assert_equals_reference, moment, number, way):
    ended = stage.play(f"--fault={number}:0:{moment}", start=3, **way)
    assert_equals_reference(ended)
    assert ended.find_subjects("worker.died") == [f"worker {number}"], ended.describe()
    assert number in ended.get_shares(LAST_STEP)
