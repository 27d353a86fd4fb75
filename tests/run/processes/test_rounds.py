"""Rounds of inner steps train the same bytes on any workers that join, leave and die."""

from collections import Counter

import pytest

from elastane.run.nouns.records import SPOT_CHECK_FAILED

from .stage import add_worker_2_and_drain_worker_0
from .ways import OPPOSITE_WAYS, pair_with_ways

pytestmark = pytest.mark.processes

ROUNDS, INNER_STEPS, RANKS, STEP = 16, 3, 8, 5
ARGS = (f"--steps={ROUNDS}", f"--inner-steps={INNER_STEPS}")


@pytest.fixture(scope="module")
def assert_equals_one_worker(stage):
    """Return a function that asserts that a run in rounds has the bytes of one undisturbed worker."""
    expected = stage.play(*ARGS)

    def check(ended):
        assert ended.outcome.code == 0, ended.describe()
        assert ended.losses == expected.losses, ended.describe()
        assert ended.digests == expected.digests, ended.describe()
        assert set(ended.messages) == set(expected.messages)
        assert ended.model_digest == expected.model_digest
        assert ended.verdict.problems == ()
        assert not ended.find_events("worker.failed"), ended.describe()

    check(expected)
    # Each epoch of 52 samples ends with a round of 4.
    assert [line.samples.count for line in expected.run.ledger[:4]] == [48, 4, 48, 4]
    assert expected.losses[-1] != expected.losses[0]
    return check


@pytest.mark.parametrize(
    ("workers", "way"),
    [*pair_with_ways([2, 3]), pytest.param(8, {"transport": "tcp"}, id="8", marks=pytest.mark.long)],
)
def test_any_number_of_workers_makes_the_same_rounds(stage, assert_equals_one_worker, workers, way):
    ended = stage.play(*ARGS, start=workers, **way)
    assert_equals_one_worker(ended)
    assert set(ended.get_shares(ROUNDS)) == set(range(workers))


@pytest.mark.parametrize("way", OPPOSITE_WAYS)
def test_workers_join_and_leave_between_rounds(stage, assert_equals_one_worker, way):
    ended = stage.play(*ARGS, "--paced-from=5", disturb=add_worker_2_and_drain_worker_0, start=2, **way)
    assert_equals_one_worker(ended)
    assert 2 in ended.get_shares(ROUNDS)
    assert 0 not in ended.get_shares(ROUNDS)


@pytest.mark.parametrize(
    ("moment", "way"),
    [
        *pair_with_ways(["in-inner-step", "before-vote"]),
        *(
            pytest.param(moment, way, id=moment, marks=pytest.mark.long)
            for moment, way in (
                ("before-first-ready", {"transport": "tcp"}),
                ("after-first-sum", {"transport": "shared"}),
                ("before-apply", {"copies": 2, "transport": "tcp"}),
            )
        ),
    ],
)
def test_others_make_the_inner_steps_of_a_worker_that_dies(stage, assert_equals_one_worker, moment, way):
    ended = stage.play(*ARGS, f"--fault=1:{STEP}:{moment}", start=3, **way)
    assert_equals_one_worker(ended)
    assert ended.find_subjects("worker.died") == ["worker 1"]
    if moment == "in-inner-step":
        # The survivors make all inner steps of their own virtual ranks once, and all of those of worker 1.
        assert set(ended.get_shares(STEP)) == {0, 2}
        assert ended.count_computed(STEP, by=[0, 2]) == RANKS * INNER_STEPS


def test_spot_checks_compare_whole_virtual_ranks(stage, assert_equals_one_worker):
    ended = stage.play(*ARGS, start=2, spot_checks="every")
    assert_equals_one_worker(ended)
    assert sum(line.agreed for line in ended.run.ledger if line.samples.count == 48) == ROUNDS // 2


def test_a_site_that_computes_other_bits_is_found_and_put_out(stage, assert_equals_one_worker):
    """Workers without shared memory are sites; one of three flips a bit of what inner steps have changed."""
    ended = stage.play(*ARGS, f"--flip=1:{STEP}", start=3, spot_checks="every", transport="tcp")
    assert_equals_one_worker(ended)
    (found,) = ended.find_events(SPOT_CHECK_FAILED)
    assert found.who == "worker 1"
    assert ended.find_subjects("worker.died") == ["worker 1"]
    assert set(ended.get_shares(ROUNDS)) == {0, 2}


def test_a_run_resumes_in_a_round_on_other_workers(attempts, assert_equals_one_worker):
    attempts.begin("--start=2", "--checkpoint-every=4 steps", args=(*ARGS, "--paced-from=7"))
    attempts.wait_for_event("checkpoint.saved", 1)
    attempts.kill_everything()
    attempts.touch("gates")
    attempts.resume("--start=3")
    ended = attempts.wait_for_end()
    assert_equals_one_worker(ended)
    (resumed,) = ended.find_events("run.resumed")
    assert resumed.step == 4


@pytest.mark.long
def test_a_finished_run_resumes_to_write_its_model_again(attempts, assert_equals_one_worker):
    attempts.begin("--start=2", "--checkpoint-every=4 steps", args=(*ARGS, "--hold=before-model"))
    attempts.wait_for_file("held")
    attempts.kill_everything()
    attempts.resume("--start=1")
    assert_equals_one_worker(attempts.wait_for_end())


@pytest.mark.parametrize(
    ("wire", "most_bytes"),
    [
        ("int8", 1.05),
        *(pytest.param(*case, marks=pytest.mark.long) for case in (("int4", 0.95), ("bf16", 2.1))),
    ],
)
def test_two_sites_exchange_rounds_in_few_bits_and_any_number_trains_the_same_bytes(stage, wire, most_bytes):
    """Two workers without shared memory are two sites; each makes one virtual rank, and owns half of all."""
    args, options = (*ARGS, f"--wire={wire}"), {"virtual_ranks": 2, "max_workers": 2, "transport": "tcp"}
    alone = stage.play(*args, **options)
    together = stage.play(*args, "--record-sent-sums", start=2, **options)
    died = stage.play(*args, f"--fault=1:{STEP}:after-first-sum", start=2, **options)
    for ended in (together, died):
        assert ended.outcome.code == 0, ended.describe()
        assert (ended.losses, ended.digests) == (alone.losses, alone.digests), ended.describe()
    assert died.find_subjects("worker.died") == ["worker 1"]
    parameters = together.run.record.pinned.parameters
    for worker in (0, 1):
        sent = count_sent_bytes(together, worker)
        assert max(sent[4:]) <= most_bytes * parameters, sent


def test_groups_of_virtual_ranks_cross_in_few_bits_wherever_they_are_added(stage):
    """Four ranks are rounded together: on one worker, on two with a group each, on three that split one."""
    args, options = (*ARGS, "--wire=int8", "--group=4"), {"transport": "tcp", "max_workers": 3}
    alone = stage.play(*args, **options)
    two = stage.play(*args, "--record-sent-sums", start=2, **options)
    three = stage.play(*args, f"--fault=2:{STEP}:before-first-ready", start=3, **options)
    for ended in (two, three):
        assert ended.outcome.code == 0, ended.describe()
        assert (ended.losses, ended.digests) == (alone.losses, alone.digests), ended.describe()
    for worker in (0, 1):
        sent = count_sent_bytes(two, worker)
        assert sorted(sent)[len(sent) // 2] <= 1.05 * two.run.record.pinned.parameters, sent


AVERAGED = (*ARGS, "--inner-state=averaged", "--wire=int8", "--group=4")
DELAYED = (*ARGS, "--delay=1", "--wire=int8")


HANDED_ON = pytest.mark.parametrize(
    "args", [DELAYED, pytest.param(AVERAGED, marks=pytest.mark.long)], ids=["delayed", "averaged"]
)


@HANDED_ON
def test_what_a_round_hands_to_the_next_one_survives_joins_leaves_deaths_and_checks(stage, args):
    alone = stage.play(*args)
    moved = stage.play(
        *args, "--paced-from=5", disturb=add_worker_2_and_drain_worker_0, start=2, transport="tcp"
    )
    died = stage.play(*args, f"--fault=1:{STEP}:in-inner-step", start=3, spot_checks="every")
    for ended in (moved, died):
        assert ended.outcome.code == 0, ended.describe()
        assert (ended.losses, ended.digests) == (alone.losses, alone.digests), ended.describe()
        assert ended.model_digest == alone.model_digest
    assert 2 in moved.get_shares(ROUNDS)


@HANDED_ON
def test_a_checkpoint_has_what_a_round_hands_to_the_next_one(stage, attempts, args):
    alone = stage.play(*args)
    attempts.begin("--start=2", "--checkpoint-every=4 steps", args=(*args, "--paced-from=7"))
    attempts.wait_for_event("checkpoint.saved", 1)
    attempts.kill_everything()
    attempts.touch("gates")
    attempts.resume("--start=3")
    ended = attempts.wait_for_end()
    assert (ended.losses, ended.digests) == (alone.losses, alone.digests), ended.describe()


@pytest.mark.long
def test_partial_sums_of_several_virtual_ranks_cross_in_full(stage):
    """So the bits do not depend on the worker that adds: eight ranks on one, two or three workers."""
    args = (*ARGS, "--wire=int8")
    alone, three = stage.play(*args), stage.play(*args, "--record-sent-sums", start=3, transport="tcp")
    assert (three.losses, three.digests) == (alone.losses, alone.digests), three.describe()
    assert alone.digests[ROUNDS] != stage.play(*ARGS).digests[ROUNDS]


def count_sent_bytes(ended, worker):
    """Return the bytes of sums that a worker has sent in each round, to all peers together."""
    notes = (ended.run.run_dir.root / f"sent-{worker}").read_text().splitlines()
    sent = Counter()
    for round_, _, size in map(str.split, notes):
        sent[int(round_)] += int(size)
    return [sent[round_] for round_ in sorted(sent)]
