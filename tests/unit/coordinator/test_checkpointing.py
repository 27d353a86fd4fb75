"""Stories of checkpoints: when one is asked for, who publishes it, what becomes of one that is not whole."""

import math
from dataclasses import replace

import pytest

from elastane.api.checkpoints import format_checkpoint_name
from elastane.api.control import (
    AskCheckpoint,
    AskStop,
    CheckpointKept,
    CheckpointPart,
    ModelWritten,
    PublishCheckpoint,
    RunOver,
    TakeCheckpoint,
    WriteAgain,
    WriteModel,
)
from elastane.api.spec import CheckpointPolicy
from elastane.coordinator.checkpointing import ASK_AGAIN_S, LAST_CHECKPOINT_S, PATIENCE_S, PUBLISH_AGAIN_S
from elastane.coordinator.checkpoints import (
    FIRST_S,
    LARGEST_SHARE,
    PRIOR_S,
    compute_first_due,
    compute_interval_s,
    group_by_checkpoint,
)

AUTO = CheckpointPolicy(auto=True)
EVERY_MINUTE = CheckpointPolicy(every_s=60.0)
EVERY_STEPS = CheckpointPolicy(every_steps=5)


def part(step: int, state: str = "written", *, writers: tuple[int, ...] = (0, 1), **more) -> CheckpointPart:
    return CheckpointPart(name=format_checkpoint_name(step), step=step, writers=writers, state=state, **more)


# -- pure ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("policy", "cost_s", "undisturbed_s", "interruptions", "expected_s"),
    [
        (EVERY_MINUTE, 50.0, 1e6, 9, 60.0),
        (EVERY_STEPS, 1.0, 1e6, 9, math.inf),
        (AUTO, 0.0, 0.0, 0, FIRST_S),
        # Young, 1974: sqrt(2 C M).
        (AUTO, 2.0, 0.0, 0, math.sqrt(2 * 2.0 * PRIOR_S)),
        (AUTO, 2.0, 86400.0, 4, math.sqrt(2 * 2.0 * (86400.0 + PRIOR_S) / 5)),
        # A costly one and many deaths: no more than a hundredth of the time goes into keeping the state.
        (AUTO, 60.0, 3600.0, 99, 60.0 / LARGEST_SHARE),
    ],
)
def test_the_interval_follows_from_the_policy_the_cost_and_the_deaths(
    policy, cost_s, undisturbed_s, interruptions, expected_s
):
    assert compute_interval_s(policy, cost_s, undisturbed_s, interruptions) == pytest.approx(expected_s)


def test_the_first_one_is_due_after_the_first_interval():
    assert compute_first_due(None, 100.0) == math.inf
    assert compute_first_due(EVERY_STEPS, 100.0) == math.inf
    assert compute_first_due(EVERY_MINUTE, 100.0) == 160.0
    assert compute_first_due(AUTO, 100.0) == 100.0 + FIRST_S


def test_what_is_in_flight_is_told_oldest_first():
    flying = group_by_checkpoint({0: (part(5), part(10, "writing")), 1: (part(5, "writing"),)}, frozenset())
    assert [(some.step, some.written) for some in flying] == [(5, False), (10, False)]
    assert flying[0].parts.keys() == {0, 1}
    assert flying[1].parts.keys() == {0}


def test_a_copy_that_may_still_be_void_is_not_in_flight():
    assert group_by_checkpoint({0: (part(5, "copied"),), 1: ()}, frozenset()) == ()


def test_a_writer_that_died_first_makes_it_hopeless_and_one_that_died_after_its_work_does_not():
    (flying,) = group_by_checkpoint({0: (part(5),), 1: (part(5, "writing"),)}, frozenset({1}))
    assert (flying.lost, flying.hopeless) == ((1,), "its writers died: worker 1")
    (flying,) = group_by_checkpoint({0: (part(5, "writing"),), 1: (part(5),)}, frozenset({1}))
    assert (flying.lost, flying.hopeless, flying.written) == ((), "", False)
    (flying,) = group_by_checkpoint({0: (part(5),)}, frozenset({1}))
    assert flying.lost == (1,)


def test_what_hinders_it_is_said_in_the_words_of_who_is_hindered():
    (refused,) = group_by_checkpoint({0: (part(5),), 1: (part(5, "failing", error="no room"),)}, frozenset())
    assert (refused.refused, refused.hopeless) == ("no room", "")
    (given_up,) = group_by_checkpoint(
        {0: (part(5),), 1: (part(5, "abandoned", error="too late"),)}, frozenset()
    )
    assert given_up.hopeless == "too late"


def test_it_costs_what_its_slowest_part_did():
    (flying,) = group_by_checkpoint(
        {0: (part(5, copy_s=0.5, cpu_s=0.1),), 1: (part(5, copy_s=0.2, cpu_s=0.7),)}, frozenset()
    )
    assert flying.cost_s == pytest.approx(0.9)


# -- asking --------------------------------------------------------------------------------------------------


def say(stage, worker: int, *parts: CheckpointPart, **more) -> None:
    stage.worker(worker, checkpoints=parts, **more)


def kept(stage, step: int, *, worker: int = 0, error: str = "", **metrics: float) -> None:
    name = format_checkpoint_name(step)
    stage.hear(CheckpointKept(worker=worker, name=name, step=step, bytes=1000, error=error, metrics=metrics))


def publish(step: int, writers: tuple[int, ...] = (0, 1)) -> PublishCheckpoint:
    return PublishCheckpoint(name=format_checkpoint_name(step), step=step, writers=writers)


def test_when_it_is_due_every_member_is_asked_and_asked_again_until_one_has_begun(training):
    stage = training(2, checkpoints=EVERY_MINUTE)
    stage.wait(59)
    assert stage.told(TakeCheckpoint) == []
    stage.wait(1)
    assert stage.told(TakeCheckpoint) == [TakeCheckpoint(after=0)] * 2
    stage.wait(ASK_AGAIN_S / 2)
    assert len(stage.told(TakeCheckpoint)) == 2
    stage.wait(ASK_AGAIN_S)
    assert len(stage.told(TakeCheckpoint)) == 4
    say(stage, 0, part(5, "writing"))
    stage.actions.clear()
    stage.wait(ASK_AGAIN_S)
    stage.wait(600)
    assert stage.told(TakeCheckpoint) == [], "never two at once"


def test_the_interval_runs_from_when_one_exists(training):
    stage = training(2, checkpoints=EVERY_MINUTE)
    stage.ask(AskCheckpoint())
    say(stage, 0, part(5))
    say(stage, 1, part(5))
    stage.wait(50)
    kept(stage, 5)
    stage.actions.clear()
    stage.wait(59)
    assert stage.told(TakeCheckpoint) == []
    stage.wait(1)
    assert stage.told(TakeCheckpoint, 0) == [TakeCheckpoint(after=5)]


def test_by_steps_nobody_is_asked_unless_a_user_asks(training):
    stage = training(2, checkpoints=EVERY_STEPS)
    stage.wait(1e6)
    assert stage.told(TakeCheckpoint) == []
    assert stage.ask(AskCheckpoint()).ok
    assert len(stage.told(TakeCheckpoint)) == 2


def test_nobody_is_asked_before_the_first_step_and_after_a_stop(training, open_stage):
    fresh = open_stage(start=1, checkpoints=EVERY_MINUTE)
    fresh.start(0)
    fresh.adopt()
    fresh.wait(100)
    assert fresh.told(TakeCheckpoint) == []
    stopping = training(2, checkpoints=EVERY_MINUTE)
    stopping.ask(AskStop())
    stopping.wait(100)
    assert stopping.told(TakeCheckpoint) == []


def test_a_run_that_keeps_none_says_so(training):
    answer = training(2).ask(AskCheckpoint())
    assert not answer.ok
    assert "--checkpoint-every never" in answer.why


# -- publishing ----------------------------------------------------------------------------------------------


def test_it_is_published_once_by_one_worker_when_all_have_written(training):
    stage = training(2, checkpoints=EVERY_STEPS)
    say(stage, 0, part(5))
    say(stage, 1, part(5, "writing"))
    assert stage.told(PublishCheckpoint) == []
    say(stage, 1, part(5, write_s=2.0))
    stage.worker(0)
    assert stage.told(PublishCheckpoint) == [publish(5)]
    kept(stage, 5)
    kept(stage, 5)
    stage.wait(PUBLISH_AGAIN_S)
    assert stage.told(PublishCheckpoint) == [publish(5)]
    (saved,) = [event for event in stage.events if event.kind == "checkpoint.saved"]
    assert saved.detail["name"] == format_checkpoint_name(5)
    assert (saved.detail["seconds"], saved.detail["writers"]) == (2.0, 2)


def test_it_waits_for_the_ledgers_lines_up_to_its_step(training):
    """Without them nobody could resume from it."""
    stage = training(2, checkpoints=EVERY_STEPS)
    for worker in (0, 1):
        say(stage, worker, part(6), step=7)
    assert stage.told(PublishCheckpoint) == []
    stage.step(6, 0)
    assert stage.told(PublishCheckpoint) == [publish(6)]


def test_another_worker_publishes_when_the_publisher_dies(training):
    stage = training(3, checkpoints=EVERY_STEPS)
    for worker in (0, 1):
        say(stage, worker, part(5))
    assert len(stage.told(PublishCheckpoint, 0)) == 1
    stage.exit(0)
    assert stage.told(PublishCheckpoint, 1) == [publish(5)]
    kept(stage, 5, worker=1)
    stage.wait(2 * PUBLISH_AGAIN_S)
    assert len(stage.told(PublishCheckpoint)) == 2


def test_one_that_has_not_written_a_part_publishes_when_all_writers_are_dead(training):
    stage = training(3, checkpoints=EVERY_STEPS)
    for worker in (0, 1):
        say(stage, worker, part(5))
    stage.exit(0)
    stage.exit(1)
    assert stage.told(PublishCheckpoint, 2) == [publish(5)]


def test_a_publisher_that_does_not_answer_or_cannot_is_followed_by_the_next(training):
    stage = training(2, checkpoints=EVERY_STEPS)
    for worker in (0, 1):
        say(stage, worker, part(5))
    kept(stage, 5, error="no room")
    (failing,) = [event for event in stage.events if event.kind == "checkpoint.failing"]
    assert failing.why == f"{format_checkpoint_name(5)}: no room; the run tries again"
    stage.wait(PUBLISH_AGAIN_S)
    assert stage.told(PublishCheckpoint, 1) == [publish(5)]
    stage.wait(PUBLISH_AGAIN_S)
    assert len(stage.told(PublishCheckpoint, 0)) == 2


def test_one_after_the_other_is_published_although_the_next_was_begun(training):
    stage = training(2, step=15, checkpoints=EVERY_STEPS)
    say(stage, 0, part(5), part(10), part(15, "writing"))
    say(stage, 1, part(5), part(10, "writing"))
    assert stage.told(PublishCheckpoint) == [publish(5)]
    say(stage, 1, part(5), part(10), part(15, "writing"))
    assert stage.told(PublishCheckpoint) == [publish(5)], "never two at once"
    kept(stage, 5)
    assert stage.told(PublishCheckpoint) == [publish(5), publish(10)]


def test_one_that_storage_refuses_does_not_keep_back_the_next(training):
    stage = training(2, step=10, checkpoints=EVERY_STEPS)
    for worker in (0, 1):
        say(stage, worker, part(5))
    kept(stage, 5, error="part-0.json cannot be read")
    for worker in (0, 1):
        say(stage, worker, part(5), part(10))
    assert stage.told(PublishCheckpoint)[-1] == publish(10)
    kept(stage, 10)
    stage.wait(PUBLISH_AGAIN_S)
    assert stage.told(PublishCheckpoint)[-1] == publish(10), "what is older than one that exists is let be"


def test_a_new_coordinator_publishes_what_it_finds_written(training):
    stage = training(2, step=10, checkpoints=EVERY_STEPS)
    for worker in (0, 1):
        say(stage, worker, part(5))
    kept(stage, 5)
    for worker in (0, 1):
        say(stage, worker, part(5), part(10))
    heir = stage.successor()
    assert heir.told(PublishCheckpoint) == [publish(10)]
    assert heir.roster.checkpoints.step == 5


# -- what cannot be whole ------------------------------------------------------------------------------------


def test_one_whose_writer_died_is_given_up_and_another_one_asked_for(training):
    stage = training(3, checkpoints=EVERY_STEPS)
    say(stage, 0, part(5, writers=(0, 1, 2)))
    say(stage, 1, part(5, "writing", writers=(0, 1, 2)))
    stage.exit(1)
    (given_up,) = [event for event in stage.events if event.kind == "checkpoint.abandoned"]
    # Whether worker 2 would have written we need not know.
    assert given_up.why == f"{format_checkpoint_name(5)}: its writers died: worker 1"
    assert {a.after for a in stage.told(TakeCheckpoint)} == {5}
    assert stage.told(PublishCheckpoint) == []


def test_storage_that_refuses_is_told_of_once_and_what_is_saved_later_too(training):
    stage = training(2, checkpoints=EVERY_STEPS)
    say(stage, 0, part(5))
    for _ in range(3):
        say(stage, 1, part(5, "failing", error="no room"))
    say(stage, 1, part(5))
    kept(stage, 5)
    assert stage.kinds("checkpoint.failing", "checkpoint.saved") == ["checkpoint.failing", "checkpoint.saved"]


# -- the end -------------------------------------------------------------------------------------------------


def ending(training, **changes):
    stage = training(2, step=100, checkpoints=EVERY_STEPS)
    for worker in (0, 1):
        stage.worker(worker, state="finished", step=100, **changes)
    return stage


def test_the_model_is_written_once_the_last_checkpoint_exists(training):
    stage = ending(training, checkpoints=(part(100, "writing"),))
    assert stage.told(WriteModel) == []
    for worker in (0, 1):
        say(stage, worker, part(100))
    assert stage.told(WriteModel) == []
    kept(stage, 100)
    assert len(stage.told(WriteModel)) == 1
    stage.hear(ModelWritten(worker=0))
    assert stage.told(RunOver)[0].code == 0


def test_the_end_does_not_wait_for_ever_for_storage(training):
    stage = ending(training, checkpoints=(part(100, "failing", error="no room"),))
    stage.wait(LAST_CHECKPOINT_S - 1)
    assert stage.told(WriteModel) == []
    stage.wait(1)
    assert len(stage.told(WriteModel)) == 1
    (given_up,) = [event for event in stage.events if event.kind == "checkpoint.abandoned"]
    assert given_up.why == f"{format_checkpoint_name(100)}: no room"


def test_the_last_checkpoint_of_an_attempt_that_had_nothing_left_to_train_is_waited_for(training):
    """Its step is the one that the attempt began with."""
    stage = training(2, step=100, checkpoints=EVERY_STEPS)
    stage.roster = replace(
        stage.roster,
        checkpoints=replace(stage.roster.checkpoints, step=100),
        progress=replace(stage.roster.progress, origin=100),
    )
    for worker in (0, 1):
        stage.worker(worker, state="finished", step=100, checkpoints=(part(100),))
    assert stage.told(PublishCheckpoint) == [publish(100)]
    kept(stage, 100)
    assert len(stage.told(WriteModel)) == 1


# -- one that a worker cannot write --------------------------------------------------------------------------

NO_ROOM = {"state": "failing", "error": "no room"}


def written_again(stage, *workers: int) -> list[WriteAgain]:
    return [message for worker in workers for message in stage.told(WriteAgain, worker)]


def test_in_mid_run_another_is_asked_for_once_one_writer_is_refused_for_long_and_others_are_not(training):
    stage = training(2, checkpoints=EVERY_STEPS)
    say(stage, 0, part(5))
    say(stage, 1, part(5, **NO_ROOM))
    stage.wait(PATIENCE_S - 0.1)
    assert stage.told(TakeCheckpoint) == []
    stage.wait(0.1)
    assert {message.after for message in stage.told(TakeCheckpoint)} == {5}
    (given_up,) = [event for event in stage.events if event.kind == "checkpoint.abandoned"]
    assert "worker 1 cannot write it" in given_up.why


def test_in_mid_run_storage_that_refuses_everybody_is_tried_again_and_nothing_is_given_up(training):
    stage = training(2, checkpoints=EVERY_STEPS)
    for worker in (0, 1):
        say(stage, worker, part(5, **NO_ROOM))
    stage.wait(10 * PATIENCE_S)
    assert stage.told(TakeCheckpoint) == []
    assert stage.kinds("checkpoint.abandoned") == []


def test_in_mid_run_it_ends_when_each_has_been_refused_in_turn(training):
    """Nobody is asked again and again for what nobody can write."""
    stage = training(2, step=10, checkpoints=EVERY_STEPS)
    say(stage, 1, part(5, writers=(1,), **NO_ROOM))
    stage.wait(PATIENCE_S)
    assert len(stage.kinds("checkpoint.abandoned")) == 1
    say(stage, 1, part(5, "abandoned", writers=(1,)))
    say(stage, 0, part(10, writers=(0,), **NO_ROOM))
    stage.wait(PATIENCE_S)
    stage.wait(10 * PATIENCE_S)
    assert len(stage.kinds("checkpoint.abandoned")) == 1


def test_at_the_end_another_member_writes_what_one_cannot(training):
    stage = ending(training, checkpoints=(part(100, "writing"),))
    say(stage, 0, part(100))
    say(stage, 1, part(100, **NO_ROOM))
    stage.wait(PATIENCE_S)
    assert written_again(stage, 0, 1) == [WriteAgain(writers=(0,), attempt=1)]
    say(stage, 0, part(100, writers=(0,), attempt=1))
    assert stage.told(PublishCheckpoint) == [publish(100, (0,))]
    kept(stage, 100)
    assert len(stage.told(WriteModel)) == 1


def test_at_the_end_others_write_what_one_that_died_had_not(training):
    stage = training(3, step=100, checkpoints=EVERY_STEPS)
    everybody = (0, 1, 2)
    for worker in everybody:
        stage.worker(worker, state="finished", step=100, checkpoints=(part(100, writers=everybody),))
    say(stage, 1, part(100, "writing", writers=everybody))
    stage.roster = replace(stage.roster, checkpoints=replace(stage.roster.checkpoints, publishing=None))
    stage.exit(1)
    assert written_again(stage, *everybody) == [WriteAgain(writers=(0, 2), attempt=1)] * 2
    assert stage.kinds("checkpoint.abandoned") == []


def test_at_the_end_members_of_different_generations_are_not_asked_to_divide_the_blocks(training):
    stage = training(3, step=100, checkpoints=EVERY_STEPS, copies=2)
    everybody = (0, 1, 2)
    for worker in everybody:
        stage.worker(worker, state="finished", step=100, checkpoints=(part(100, writers=everybody),))
    say(stage, 1, part(100, "writing", writers=everybody))
    stage.roster = replace(stage.roster, checkpoints=replace(stage.roster.checkpoints, publishing=None))
    stage.worker(0, generation=2)
    stage.exit(1)
    assert written_again(stage, *everybody) == []
    stage.worker(2, generation=2)
    assert written_again(stage, *everybody) == [WriteAgain(writers=(0, 2), attempt=1)] * 2
    assert stage.kinds("checkpoint.abandoned") == []


def test_what_was_asked_is_asked_again_until_it_is_begun_and_a_late_success_does_not_count(training):
    stage = ending(training, checkpoints=(part(100, "writing"),))
    say(stage, 0, part(100))
    say(stage, 1, part(100, **NO_ROOM))
    stage.wait(PATIENCE_S)
    stage.wait(ASK_AGAIN_S)
    assert written_again(stage, 0) == [WriteAgain(writers=(0,), attempt=1)] * 2
    say(stage, 0, part(100, "writing", writers=(0,), attempt=1))
    say(stage, 1, part(100))
    assert stage.told(PublishCheckpoint) == []


def test_each_is_tried_once_and_then_the_end_comes_as_it_does_without_storage(training):
    stage = ending(training, checkpoints=(part(100, "writing"),))
    say(stage, 0, part(100))
    say(stage, 1, part(100, **NO_ROOM))
    stage.wait(PATIENCE_S)
    say(stage, 0, part(100, writers=(0,), attempt=1, **NO_ROOM))
    stage.wait(PATIENCE_S)
    assert len(written_again(stage, 0, 1)) == 1
    stage.wait(LAST_CHECKPOINT_S)
    assert len(stage.told(WriteModel)) == 1
    assert len(stage.kinds("checkpoint.abandoned")) == 1


def test_in_mid_run_a_part_that_made_way_for_the_next_says_nothing_against_its_writer(training):
    """Storage that all share is away: the parts of the next checkpoint are tried until it is back."""
    stage = training(2, step=10, checkpoints=EVERY_STEPS)
    for worker in (0, 1):
        say(stage, worker, part(5, "abandoned", error="refused until the next one was due"))
    say(stage, 0, part(10, **NO_ROOM))
    say(stage, 1, part(10, "writing"))
    stage.wait(PATIENCE_S / 2)
    say(stage, 1, part(10, **NO_ROOM))
    stage.wait(10 * PATIENCE_S)
    abandoned = [event.detail["name"] for event in stage.events if event.kind == "checkpoint.abandoned"]
    assert abandoned == [format_checkpoint_name(5)]
    for worker in (0, 1):
        say(stage, worker, part(10))
    assert stage.told(PublishCheckpoint)[-1] == publish(10)


# -- the best one --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("metrics", "warned"),
    [({"loss": 1.0}, True), ({"val_loss": 1.0}, False), ({"evaluation.val_loss": 1.0}, False)],
)
def test_a_checkpoint_that_cannot_be_the_best_is_told_once(training, metrics, warned):
    policy = CheckpointPolicy(every_s=60.0, keep_best=("val_loss", "min"))
    stage = training(2, checkpoints=policy)
    for step in (5, 10):
        say(stage, 0, part(step))
        say(stage, 1, part(step))
        kept(stage, step, **metrics)
    told = [event.why for event in stage.events if event.kind == "warning"]
    assert len(told) == warned
    assert all("val_loss" in why and "It has loss" in why for why in told)
