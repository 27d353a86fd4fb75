"""Stories of checkpoints: requests, publication, and checkpoints that cannot be completed."""

import math
from dataclasses import replace

import msgspec
import pytest

from elastane.run.coordinator.checkpointing import ASK_AGAIN_S, LAST_CHECKPOINT_S, PATIENCE_S, PUBLISH_AGAIN_S
from elastane.run.coordinator.checkpoints import (
    FIRST_S,
    LARGEST_SHARE,
    PRIOR_S,
    compute_first_due,
    compute_interval_s,
    divide_blocks,
    group_by_checkpoint,
    list_spanned,
)
from elastane.run.nouns.checkpoints import format_checkpoint_name
from elastane.run.nouns.control import (
    AskCheckpoint,
    AskStop,
    CheckpointKept,
    CheckpointPart,
    ModelWritten,
    PublishCheckpoint,
    RunOver,
    TakeCheckpoint,
    WorkerExit,
    WriteAgain,
    WriteModel,
)
from elastane.run.nouns.silence_limits import LISTEN_S
from elastane.run.nouns.spec import CheckpointPolicy

AUTO = CheckpointPolicy(auto=True)
EVERY_MINUTE = CheckpointPolicy(every_s=60.0)
EVERY_STEPS = CheckpointPolicy(every_steps=5)


def make_part(
    step: int, state: str = "written", *, writers: tuple[int, ...] = (0, 1), **more
) -> CheckpointPart:
    return CheckpointPart(name=format_checkpoint_name(step), step=step, writers=writers, state=state, **more)


# -- pure functions --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("policy", "cost_s", "undisturbed_s", "interruptions", "expected_s"),
    [
        (EVERY_MINUTE, 50.0, 1e6, 9, 60.0),
        (EVERY_STEPS, 1.0, 1e6, 9, math.inf),
        (AUTO, 0.0, 0.0, 0, FIRST_S),
        # Young, 1974: sqrt(2 C M).
        (AUTO, 2.0, 0.0, 0, math.sqrt(2 * 2.0 * PRIOR_S)),
        (AUTO, 2.0, 86400.0, 4, math.sqrt(2 * 2.0 * (86400.0 + PRIOR_S) / 5)),
        # A costly checkpoint and many deaths: checkpoints take at most a hundredth of the time.
        (AUTO, 60.0, 3600.0, 99, 60.0 / LARGEST_SHARE),
    ],
)
def test_the_interval_follows_from_the_policy_the_cost_and_the_deaths(
    policy, cost_s, undisturbed_s, interruptions, expected_s
):
    assert compute_interval_s(policy, cost_s, undisturbed_s, interruptions) == pytest.approx(expected_s)


def test_the_first_checkpoint_is_due_after_the_first_interval():
    assert compute_first_due(None, 100.0) == math.inf
    assert compute_first_due(EVERY_STEPS, 100.0) == math.inf
    assert compute_first_due(EVERY_MINUTE, 100.0) == 160.0
    assert compute_first_due(AUTO, 100.0) == 100.0 + FIRST_S


@pytest.mark.parametrize(
    ("held", "expected"),
    [
        (((0, ((0, 4),)), (1, ((0, 4),))), {0: (0, 2), 1: (1, 3)}),
        (((0, ((0, 1),)), (1, ((0, 3),)), (2, ((3, 4),))), {0: (0,), 1: (1, 2), 2: (3,)}),
        (((0, ((0, 1), (2, 9))), (1, ()), (2, ((1, 2),))), {0: (0, 2, 3), 2: (1,)}),
        (((0, ((0, 2),)), (1, ((3, 6),))), {}),
        ((), {}),
    ],
)
def test_each_block_has_one_of_its_holders_as_writer(held, expected):
    assert divide_blocks(held, 4) == expected


@pytest.mark.parametrize(
    ("spans", "expected"),
    [
        (((0, 2), (3, 5)), (0, 1, 3, 4)),
        (((3, 5), (0, 4), (4, 6)), (3, 4, 5)),
        (((2, 1), (1, 3)), (1, 2)),
        (((0, 10**6),) * 1000, tuple(range(10**6))),
    ],
)
def test_spans_never_yield_a_block_twice(spans, expected):
    assert tuple(list_spanned(spans)) == expected


def test_checkpoints_in_progress_are_listed_oldest_first():
    in_progress = group_by_checkpoint(
        {0: (make_part(5), make_part(10, "writing")), 1: (make_part(5, "writing"),)}, frozenset()
    )
    assert [(some.step, some.written) for some in in_progress] == [(5, False), (10, False)]
    assert in_progress[0].parts.keys() == {0, 1}
    assert in_progress[1].parts.keys() == {0}


def test_a_copy_that_may_still_be_void_is_not_in_progress():
    assert group_by_checkpoint({0: (make_part(5, "copied"),), 1: ()}, frozenset()) == ()


def test_a_checkpoint_is_hopeless_if_a_writer_died_before_it_had_written():
    (in_progress,) = group_by_checkpoint({0: (make_part(5),), 1: (make_part(5, "writing"),)}, frozenset({1}))
    assert (in_progress.lost, in_progress.hopeless) == ((1,), "its writers died: worker 1")
    (in_progress,) = group_by_checkpoint({0: (make_part(5, "writing"),), 1: (make_part(5),)}, frozenset({1}))
    assert (in_progress.lost, in_progress.hopeless, in_progress.written) == ((), "", False)
    (in_progress,) = group_by_checkpoint({0: (make_part(5),)}, frozenset({1}))
    assert in_progress.lost == (1,)


def test_a_checkpoint_has_the_error_of_the_refused_part():
    (refused,) = group_by_checkpoint(
        {0: (make_part(5),), 1: (make_part(5, "failing", error="no room"),)}, frozenset()
    )
    assert (refused.refused, refused.hopeless) == ("no room", "")
    (abandoned,) = group_by_checkpoint(
        {0: (make_part(5),), 1: (make_part(5, "abandoned", error="too late"),)}, frozenset()
    )
    assert abandoned.hopeless == "too late"


def test_a_checkpoint_costs_the_time_of_its_slowest_part():
    (in_progress,) = group_by_checkpoint(
        {0: (make_part(5, copy_s=0.5, cpu_s=0.1),), 1: (make_part(5, copy_s=0.2, cpu_s=0.7),)}, frozenset()
    )
    assert in_progress.cost_s == pytest.approx(0.9)


# -- requests --------------------------------------------------------------------------------------------


def report_parts(stage, worker: int, *parts: CheckpointPart, **more) -> None:
    stage.report_worker(worker, checkpoints=parts, **more)


def report_kept(stage, step: int, *, worker: int = 0, error: str = "", **metrics: float) -> None:
    name = format_checkpoint_name(step)
    stage.receive(
        CheckpointKept(worker=worker, name=name, step=step, bytes=1000, error=error, metrics=metrics)
    )


def make_order(step: int, writers: tuple[int, ...] = (0, 1)) -> PublishCheckpoint:
    return PublishCheckpoint(name=format_checkpoint_name(step), step=step, writers=writers)


def test_a_due_checkpoint_is_requested_until_a_member_has_begun_it(training):
    stage = training(2, checkpoints=EVERY_MINUTE)
    stage.wait(59)
    assert stage.list_messages(TakeCheckpoint) == []
    stage.wait(1)
    assert stage.list_messages(TakeCheckpoint) == [TakeCheckpoint(after=0)] * 2
    stage.wait(ASK_AGAIN_S / 2)
    assert len(stage.list_messages(TakeCheckpoint)) == 2
    stage.wait(ASK_AGAIN_S)
    assert len(stage.list_messages(TakeCheckpoint)) == 4
    report_parts(stage, 0, make_part(5, "writing"))
    stage.actions.clear()
    stage.wait(ASK_AGAIN_S)
    stage.wait(600)
    assert stage.list_messages(TakeCheckpoint) == [], "only one at a time"


def test_the_interval_begins_when_a_checkpoint_exists(training):
    stage = training(2, checkpoints=EVERY_MINUTE)
    stage.ask(AskCheckpoint())
    report_parts(stage, 0, make_part(5))
    report_parts(stage, 1, make_part(5))
    stage.wait(50)
    report_kept(stage, 5)
    stage.actions.clear()
    stage.wait(59)
    assert stage.list_messages(TakeCheckpoint) == []
    stage.wait(1)
    assert stage.list_messages(TakeCheckpoint, 0) == [TakeCheckpoint(after=5)]


def test_with_an_interval_in_steps_only_a_user_requests_checkpoints(training):
    stage = training(2, checkpoints=EVERY_STEPS)
    stage.wait(1e6)
    assert stage.list_messages(TakeCheckpoint) == []
    assert stage.ask(AskCheckpoint()).ok
    assert len(stage.list_messages(TakeCheckpoint)) == 2


def test_no_checkpoint_is_requested_before_the_first_step_or_after_a_stop(training, open_stage):
    fresh = open_stage(start=1, checkpoints=EVERY_MINUTE)
    fresh.start(0)
    fresh.adopt()
    fresh.wait(100)
    assert fresh.list_messages(TakeCheckpoint) == []
    stopping = training(2, checkpoints=EVERY_MINUTE)
    stopping.ask(AskStop())
    stopping.wait(100)
    assert stopping.list_messages(TakeCheckpoint) == []


def test_a_run_without_checkpoints_gives_the_reason_of_its_refusal(training):
    answer = training(2).ask(AskCheckpoint())
    assert not answer.ok
    assert "--checkpoint-every never" in answer.why


# -- publication -----------------------------------------------------------------------------------------


def test_one_worker_publishes_a_checkpoint_once_all_have_written(training):
    stage = training(2, checkpoints=EVERY_STEPS)
    report_parts(stage, 0, make_part(5))
    report_parts(stage, 1, make_part(5, "writing"))
    assert stage.list_messages(PublishCheckpoint) == []
    report_parts(stage, 1, make_part(5, write_s=2.0))
    stage.report_worker(0)
    assert stage.list_messages(PublishCheckpoint) == [make_order(5)]
    report_kept(stage, 5)
    report_kept(stage, 5)
    stage.wait(PUBLISH_AGAIN_S)
    assert stage.list_messages(PublishCheckpoint) == [make_order(5)]
    (saved,) = [event for event in stage.events if event.kind == "checkpoint.saved"]
    assert saved.detail["name"] == format_checkpoint_name(5)
    assert (saved.detail["seconds"], saved.detail["writers"]) == (2.0, 2)


def test_a_checkpoint_is_published_after_the_ledger_has_its_step(training):
    """Without them no run could resume from it."""
    stage = training(2, checkpoints=EVERY_STEPS)
    for worker in (0, 1):
        report_parts(stage, worker, make_part(6), step=7)
    assert stage.list_messages(PublishCheckpoint) == []
    stage.report_step(6, 0)
    assert stage.list_messages(PublishCheckpoint) == [make_order(6)]


def test_another_worker_publishes_when_the_publisher_dies(training):
    stage = training(3, checkpoints=EVERY_STEPS)
    for worker in (0, 1):
        report_parts(stage, worker, make_part(5))
    assert len(stage.list_messages(PublishCheckpoint, 0)) == 1
    stage.end_worker(0)
    assert stage.list_messages(PublishCheckpoint, 1) == [make_order(5)]
    report_kept(stage, 5, worker=1)
    stage.wait(2 * PUBLISH_AGAIN_S)
    assert len(stage.list_messages(PublishCheckpoint)) == 2


def test_another_worker_publishes_when_all_writers_are_dead(training):
    stage = training(3, checkpoints=EVERY_STEPS)
    for worker in (0, 1):
        report_parts(stage, worker, make_part(5))
    stage.end_worker(0)
    stage.end_worker(1)
    assert stage.list_messages(PublishCheckpoint, 2) == [make_order(5)]


def test_the_next_worker_publishes_if_one_fails_or_does_not_answer(training):
    stage = training(2, checkpoints=EVERY_STEPS)
    for worker in (0, 1):
        report_parts(stage, worker, make_part(5))
    report_kept(stage, 5, error="no room")
    (failing,) = [event for event in stage.events if event.kind == "checkpoint.failing"]
    assert failing.why == f"{format_checkpoint_name(5)}: no room; the run tries again"
    stage.wait(PUBLISH_AGAIN_S)
    assert stage.list_messages(PublishCheckpoint, 1) == [make_order(5)]
    stage.wait(PUBLISH_AGAIN_S)
    assert len(stage.list_messages(PublishCheckpoint, 0)) == 2


def test_checkpoints_are_published_one_after_the_other(training):
    stage = training(2, step=15, checkpoints=EVERY_STEPS)
    report_parts(stage, 0, make_part(5), make_part(10), make_part(15, "writing"))
    report_parts(stage, 1, make_part(5), make_part(10, "writing"))
    assert stage.list_messages(PublishCheckpoint) == [make_order(5)]
    report_parts(stage, 1, make_part(5), make_part(10), make_part(15, "writing"))
    assert stage.list_messages(PublishCheckpoint) == [make_order(5)], "only one at a time"
    report_kept(stage, 5)
    assert stage.list_messages(PublishCheckpoint) == [make_order(5), make_order(10)]


def test_a_refused_checkpoint_does_not_delay_the_next(training):
    stage = training(2, step=10, checkpoints=EVERY_STEPS)
    for worker in (0, 1):
        report_parts(stage, worker, make_part(5))
    report_kept(stage, 5, error="part-0.json cannot be read")
    for worker in (0, 1):
        report_parts(stage, worker, make_part(5), make_part(10))
    assert stage.list_messages(PublishCheckpoint)[-1] == make_order(10)
    report_kept(stage, 10)
    stage.wait(PUBLISH_AGAIN_S)
    assert stage.list_messages(PublishCheckpoint)[-1] == make_order(10), (
        "a checkpoint older than an existing one is ignored"
    )


def test_a_new_coordinator_publishes_a_written_checkpoint(training):
    stage = training(2, step=10, checkpoints=EVERY_STEPS)
    for worker in (0, 1):
        report_parts(stage, worker, make_part(5))
    report_kept(stage, 5)
    for worker in (0, 1):
        report_parts(stage, worker, make_part(5), make_part(10))
    successor = stage.start_successor()
    assert successor.list_messages(PublishCheckpoint) == [make_order(10)]
    assert successor.roster.checkpoints.step == 5


# -- checkpoints that cannot be completed ----------------------------------------------------------------


def test_a_checkpoint_of_a_dead_writer_is_abandoned_and_another_requested(training):
    stage = training(3, checkpoints=EVERY_STEPS)
    report_parts(stage, 0, make_part(5, writers=(0, 1, 2)))
    report_parts(stage, 1, make_part(5, "writing", writers=(0, 1, 2)))
    stage.end_worker(1)
    (abandoned,) = [event for event in stage.events if event.kind == "checkpoint.abandoned"]
    # It does not matter whether worker 2 would have written its part.
    assert abandoned.why == f"{format_checkpoint_name(5)}: its writers died: worker 1"
    assert {a.after for a in stage.list_messages(TakeCheckpoint)} == {5}
    assert stage.list_messages(PublishCheckpoint) == []


def test_a_refusal_of_storage_is_recorded_once_and_a_later_success_too(training):
    stage = training(2, checkpoints=EVERY_STEPS)
    report_parts(stage, 0, make_part(5))
    for _ in range(3):
        report_parts(stage, 1, make_part(5, "failing", error="no room"))
    report_parts(stage, 1, make_part(5))
    report_kept(stage, 5)
    assert stage.list_kinds("checkpoint.failing", "checkpoint.saved") == [
        "checkpoint.failing",
        "checkpoint.saved",
    ]


# -- the end of the run ----------------------------------------------------------------------------------


def finish_training(training, **changes):
    stage = training(2, step=100, checkpoints=EVERY_STEPS)
    for worker in (0, 1):
        stage.report_worker(worker, state="finished", step=100, last_blocks=((0, 4),), **changes)
    return stage


def test_the_model_is_written_once_the_last_checkpoint_exists(training):
    stage = finish_training(training, checkpoints=(make_part(100, "writing"),))
    assert stage.list_messages(WriteModel) == []
    for worker in (0, 1):
        report_parts(stage, worker, make_part(100))
    assert stage.list_messages(WriteModel) == []
    report_kept(stage, 100)
    assert len(stage.list_messages(WriteModel)) == 1
    stage.receive(ModelWritten(worker=0))
    assert stage.list_messages(RunOver)[0].code == 0


def test_the_end_of_a_run_does_not_wait_for_storage_for_ever(training):
    stage = finish_training(training, checkpoints=(make_part(100, "failing", error="no room"),))
    stage.wait(LAST_CHECKPOINT_S - 1)
    assert stage.list_messages(WriteModel) == []
    stage.wait(1)
    assert len(stage.list_messages(WriteModel)) == 1
    (abandoned,) = [event for event in stage.events if event.kind == "checkpoint.abandoned"]
    assert abandoned.why == f"{format_checkpoint_name(100)}: no room"


def test_an_attempt_without_steps_waits_for_its_last_checkpoint(training):
    """Its step is the first step of the attempt."""
    stage = training(2, step=100, checkpoints=EVERY_STEPS)
    stage.roster = replace(
        stage.roster,
        checkpoints=replace(stage.roster.checkpoints, step=100),
        progress=replace(stage.roster.progress, origin=100),
    )
    for worker in (0, 1):
        stage.report_worker(worker, state="finished", step=100, checkpoints=(make_part(100),))
    assert stage.list_messages(PublishCheckpoint) == [make_order(100)]
    report_kept(stage, 100)
    assert len(stage.list_messages(WriteModel)) == 1


# -- parts that a worker cannot write --------------------------------------------------------------------

NO_ROOM = {"state": "failing", "error": "no room"}


def list_rewrites(stage, *workers: int) -> list[WriteAgain]:
    return [message for worker in workers for message in stage.list_messages(WriteAgain, worker)]


def test_another_checkpoint_is_requested_if_storage_refuses_only_some_writers(training):
    stage = training(2, checkpoints=EVERY_STEPS)
    report_parts(stage, 0, make_part(5))
    report_parts(stage, 1, make_part(5, **NO_ROOM))
    stage.wait(PATIENCE_S - 0.1)
    assert stage.list_messages(TakeCheckpoint) == []
    stage.wait(0.1)
    assert {message.after for message in stage.list_messages(TakeCheckpoint)} == {5}
    (abandoned,) = [event for event in stage.events if event.kind == "checkpoint.abandoned"]
    assert "worker 1 cannot write it" in abandoned.why


def test_no_checkpoint_is_abandoned_if_storage_refuses_all_writers(training):
    stage = training(2, checkpoints=EVERY_STEPS)
    for worker in (0, 1):
        report_parts(stage, worker, make_part(5, **NO_ROOM))
    stage.wait(10 * PATIENCE_S)
    assert stage.list_messages(TakeCheckpoint) == []
    assert stage.list_kinds("checkpoint.abandoned") == []


def test_checkpoints_are_not_requested_for_ever_if_each_writer_is_refused_in_turn(training):
    """The coordinator does not request checkpoints that no worker can write."""
    stage = training(2, step=10, checkpoints=EVERY_STEPS)
    report_parts(stage, 1, make_part(5, writers=(1,), **NO_ROOM))
    stage.wait(PATIENCE_S)
    assert len(stage.list_kinds("checkpoint.abandoned")) == 1
    report_parts(stage, 1, make_part(5, "abandoned", writers=(1,)))
    report_parts(stage, 0, make_part(10, writers=(0,), **NO_ROOM))
    stage.wait(PATIENCE_S)
    stage.wait(10 * PATIENCE_S)
    assert len(stage.list_kinds("checkpoint.abandoned")) == 1


def make_rewrite(writers: tuple[int, ...], blocks: tuple, attempt: int = 1) -> WriteAgain:
    return WriteAgain(writers=writers, blocks=blocks, attempt=(1, attempt))


def test_at_the_end_another_member_writes_the_refused_part(training):
    stage = finish_training(training, checkpoints=(make_part(100, "writing"),))
    report_parts(stage, 0, make_part(100))
    report_parts(stage, 1, make_part(100, **NO_ROOM))
    stage.wait(PATIENCE_S)
    assert list_rewrites(stage, 0, 1) == [make_rewrite((0,), ((0, 4),))]
    report_parts(stage, 0, make_part(100, writers=(0,), attempt=(1, 1)))
    assert stage.list_messages(PublishCheckpoint) == [make_order(100, (0,))]
    report_kept(stage, 100)
    assert len(stage.list_messages(WriteModel)) == 1


def finish_three(training, blocks: dict[int, tuple], *, copies: int | None = 2):
    """Return a finished run of three workers that hold these blocks, of which worker 1 still writes."""
    stage = training(3, step=100, checkpoints=EVERY_STEPS, copies=copies)
    for worker, spans in blocks.items():
        parts = (make_part(100, "writing" if worker == 1 else "written", writers=(0, 1, 2)),)
        stage.report_worker(worker, state="finished", step=100, last_blocks=spans, checkpoints=parts)
    return stage


def test_at_the_end_others_write_the_part_of_a_dead_member(training):
    stage = finish_three(training, dict.fromkeys((0, 1, 2), ((0, 4),)), copies=None)
    stage.end_worker(1)
    assert list_rewrites(stage, 0, 1, 2) == [
        make_rewrite((0, 2), ((0, 1), (2, 3))),
        make_rewrite((0, 2), ((1, 2), (3, 4))),
    ]
    assert stage.list_kinds("checkpoint.abandoned") == []


def test_the_coordinator_divides_the_last_state_by_what_each_worker_holds(training):
    """A worker may have entered another generation than the others, so none of them could divide it."""
    stage = finish_three(training, {0: ((0, 2),), 1: ((0, 4),), 2: ((1, 4),)})
    stage.report_worker(0, generation=2)
    stage.end_worker(1)
    assert list_rewrites(stage, 0) == [make_rewrite((0, 2), ((0, 1),))]
    assert list_rewrites(stage, 2) == [make_rewrite((0, 2), ((1, 4),))]


def test_a_worker_of_an_earlier_step_writes_no_part_of_the_last_state(training):
    stage = finish_three(training, {0: ((0, 4),), 1: ((0, 4),), 2: ((0, 4),)})
    stage.report_worker(3, state="finished", step=99, last_blocks=((0, 4),), generation=1)
    stage.end_worker(1)
    assert {message.writers for message in list_rewrites(stage, 0, 1, 2, 3)} == {(0, 2)}


def test_a_lost_block_makes_the_last_checkpoint_hopeless(training):
    stage = finish_three(training, {0: ((0, 2),), 1: ((0, 4),), 2: ((0, 1), (3, 4))})
    stage.end_worker(1)
    assert list_rewrites(stage, 0, 1, 2) == []
    assert stage.list_kinds("checkpoint.abandoned") == ["checkpoint.abandoned"]


@pytest.mark.parametrize("before", [{"generation": 0}, {"complete": False}])
def test_the_last_checkpoint_waits_for_a_block_that_a_writer_still_receives(training, before):
    """Storage refuses the holder of the block, but it passes its state on."""
    stage = finish_three(training, {0: ((0, 2),), 1: ((0, 4),), 2: ((1, 4),)})
    receiver = msgspec.structs.replace(stage.reports[0], **before)
    stage.roster = replace(stage.roster, reports={**stage.roster.reports, 0: receiver})
    report_parts(stage, 2, make_part(100, writers=(0, 1, 2), **NO_ROOM))
    stage.end_worker(1)
    stage.wait(PATIENCE_S)
    assert stage.list_messages(WriteModel) == []
    stage.report_worker(0, generation=1, complete=True, last_blocks=((0, 4),))
    assert {message.writers for message in list_rewrites(stage, 0, 2)} == {(0,)}


def test_the_last_checkpoint_waits_for_a_holder_that_a_new_coordinator_has_not_heard(training):
    stage = finish_three(training, {0: ((0, 2),), 1: ((0, 4),), 2: ((1, 4),)})
    stage.alive.discard(1)
    stage.exits.append(WorkerExit(worker=1, pid=101, code=-9))
    successor = stage.start_successor(wait=False)
    successor.wait(LISTEN_S)
    successor.report_worker(0)
    successor.wait(PATIENCE_S)
    assert list_rewrites(successor, 0, 2) == []
    assert successor.list_messages(WriteModel) == []
    successor.report_worker(2)
    successor.wait(PATIENCE_S)
    assert {(message.writers, message.attempt) for message in list_rewrites(successor, 0, 2)} == {
        ((0, 2), (2, 1))
    }


def test_a_new_coordinator_replaces_an_attempt_of_which_parts_are_missing(training):
    """The orders of both may still be under way, with other divisions of the blocks."""
    stage = finish_three(training, dict.fromkeys((0, 1, 2), ((0, 4),)))
    report_parts(stage, 0, make_part(100, writers=(0, 2), attempt=(1, 3)))
    successor = stage.start_successor()
    successor.wait(0)
    assert {message.attempt for message in list_rewrites(successor, 0, 1, 2)} == {(2, 1)}
    report_parts(successor, 0, make_part(100, "writing", writers=(0, 1, 2), attempt=(2, 1)))
    report_parts(successor, 2, make_part(100, writers=(0, 2), attempt=(1, 3)))
    assert successor.list_messages(PublishCheckpoint) == []
    successor.actions.clear()
    successor.wait(ASK_AGAIN_S)
    assert [len(list_rewrites(successor, worker)) for worker in (0, 1, 2)] == [0, 1, 1]


def test_a_rewrite_is_requested_until_it_begins_and_replaces_earlier_parts(training):
    stage = finish_training(training, checkpoints=(make_part(100, "writing"),))
    report_parts(stage, 0, make_part(100))
    report_parts(stage, 1, make_part(100, **NO_ROOM))
    stage.wait(PATIENCE_S)
    stage.wait(ASK_AGAIN_S)
    assert list_rewrites(stage, 0) == [make_rewrite((0,), ((0, 4),))] * 2
    report_parts(stage, 0, make_part(100, "writing", writers=(0,), attempt=(1, 1)))
    report_parts(stage, 1, make_part(100))
    assert stage.list_messages(PublishCheckpoint) == []


def test_the_run_ends_without_a_last_checkpoint_if_all_rewrites_are_refused(training):
    stage = finish_training(training, checkpoints=(make_part(100, "writing"),))
    report_parts(stage, 0, make_part(100))
    report_parts(stage, 1, make_part(100, **NO_ROOM))
    stage.wait(PATIENCE_S)
    report_parts(stage, 0, make_part(100, writers=(0,), attempt=(1, 1), **NO_ROOM))
    stage.wait(PATIENCE_S)
    assert len(list_rewrites(stage, 0, 1)) == 1
    stage.wait(LAST_CHECKPOINT_S)
    assert len(stage.list_messages(WriteModel)) == 1
    assert len(stage.list_kinds("checkpoint.abandoned")) == 1


def test_a_part_abandoned_for_the_next_one_does_not_count_as_a_refusal(training):
    """Shared storage is unavailable: workers try to write the next checkpoint until it is back."""
    stage = training(2, step=10, checkpoints=EVERY_STEPS)
    for worker in (0, 1):
        report_parts(stage, worker, make_part(5, "abandoned", error="refused until the next one was due"))
    report_parts(stage, 0, make_part(10, **NO_ROOM))
    report_parts(stage, 1, make_part(10, "writing"))
    stage.wait(PATIENCE_S / 2)
    report_parts(stage, 1, make_part(10, **NO_ROOM))
    stage.wait(10 * PATIENCE_S)
    abandoned = [event.detail["name"] for event in stage.events if event.kind == "checkpoint.abandoned"]
    assert abandoned == [format_checkpoint_name(5)]
    for worker in (0, 1):
        report_parts(stage, worker, make_part(10))
    assert stage.list_messages(PublishCheckpoint)[-1] == make_order(10)


# -- the best checkpoint ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("metrics", "warned"),
    [({"loss": 1.0}, True), ({"val_loss": 1.0}, False), ({"evaluation.val_loss": 1.0}, False)],
)
def test_a_checkpoint_without_the_metric_of_the_best_one_gives_one_warning(training, metrics, warned):
    policy = CheckpointPolicy(every_s=60.0, keep_best=("val_loss", "min"))
    stage = training(2, checkpoints=policy)
    for step in (5, 10):
        report_parts(stage, 0, make_part(step))
        report_parts(stage, 1, make_part(step))
        report_kept(stage, step, **metrics)
    told = [event.why for event in stage.events if event.kind == "warning"]
    assert len(told) == warned
    assert all("val_loss" in why and "It has loss" in why for why in told)
