"""Stories of membership: who begins, who joins, who leaves, who dies, and who takes over."""

from dataclasses import replace

import msgspec
import pytest

from elastane.api.checkpoints import WrittenFile
from elastane.api.control import (
    AskDrain,
    AskEvict,
    AskResize,
    AskStatus,
    AskStop,
    KillWorker,
    ModelWritten,
    PeerLost,
    Propose,
    RunOver,
    SetTarget,
    StopTraining,
    WorkerEvent,
    WorkerExit,
    WorkerFailed,
    WriteModel,
)
from elastane.api.records import EventLine


def lost(worker: int, peer: int, generation: int) -> PeerLost:
    return PeerLost(worker=worker, peer=peer, generation=generation)


# -- evicting --------------------------------------------------------------------------------------------


def evicted(stage) -> list[int]:
    return [kill.worker for kill in stage.told(KillWorker)]


def test_whoever_is_to_leave_and_does_not_is_ended_and_nobody_else(training) -> None:
    stage = training(3)
    stage.ask(AskResize(workers=2))
    assert stage.newest.workers == (0, 1)
    stage.ask(AskEvict())
    assert evicted(stage) == [2]
    assert "did not leave in time" in stage.told(KillWorker)[0].why


def test_who_has_left_training_and_lingers_is_ended(training) -> None:
    stage = training(3)
    stage.ask(AskResize(workers=2))
    stage.adopt(0, 1)
    stage.worker(2, state="leaving", newest=stage.newest)
    assert stage.dismissed() == {2: 0}
    stage.ask(AskEvict())
    assert evicted(stage) == [2]
    stage.exit(2, -9)
    stage.ask(AskEvict())
    assert evicted(stage) == [2]


def test_those_whose_leave_cannot_even_be_planned_are_ended_too(training) -> None:
    stage = training(2)
    stage.alive.add(2)
    stage.ask(AskResize(workers=3))
    stage.worker(2, state="ready", pinned=stage.roster.pinned)
    stage.ask(AskResize(workers=1))
    assert stage.newest.workers == (0, 1, 2)
    stage.ask(AskEvict())
    assert evicted(stage) == [1, 2]


def test_nobody_is_ended_while_nobody_is_to_leave(training) -> None:
    stage = training(2)
    stage.ask(AskEvict())
    assert stage.told(KillWorker) == []


# -- beginning -------------------------------------------------------------------------------------------


def test_the_run_begins_when_as_many_as_asked_for_are_ready(open_stage) -> None:
    stage = open_stage(start=2)
    stage.start(0)
    stage.alive.add(1)
    stage.agent(target=2)
    assert stage.proposals == []
    stage.worker(1, state="ready")
    (first,) = stage.proposals
    assert (first.number, first.workers, first.planned) == (1, (0, 1), False)
    assert [member.port for member in first.members] == [5000, 5001]


def test_a_proposal_that_was_not_heard_is_repeated_after_the_next_report(open_stage) -> None:
    stage = open_stage(start=1)
    stage.start(0)
    stage.actions.clear()
    stage.worker(0)
    assert stage.told(Propose, 0) == [Propose(generation=stage.newest)]
    stage.actions.clear()
    stage.worker(0, newest=stage.newest)
    assert stage.told(Propose) == []


def test_the_first_report_of_the_script_pins_it_and_another_script_is_refused(open_stage) -> None:
    stage = open_stage(start=2)
    stage.start(0)
    stage.alive.add(1)
    other = msgspec.structs.replace(stage.roster.pinned, threads=4, seed=7)
    stage.worker(1, state="ready", pinned=other)
    (why,) = [event.why for event in stage.events if event.kind == "worker.refused"]
    assert "threads is 4, but the run's is 1" in why
    assert "seed is 7, but the run's is 0" in why
    assert stage.dismissed() == {1: 1}
    assert stage.proposals == []


def test_three_processes_in_a_row_that_never_join_are_enough(training) -> None:
    stage = training(2)
    stage.target = 3
    stage.agent()
    stage.ask(AskResize(workers=3))
    for worker in (2, 3, 4):
        stage.alive.add(worker)
        stage.worker(worker)
        stage.exit(worker, 1)
    assert stage.told(SetTarget)[-1].target == 2
    assert stage.roster.wanted.target == 2
    (event,) = [event for event in stage.events if event.who == "coordinator" and "3 workers" in event.why]
    assert "worker 4: exit code 1" in event.why


def test_a_run_nobody_can_begin_fails_after_three_attempts(open_stage) -> None:
    stage = open_stage(start=1)
    for worker in (0, 1, 2):
        stage.alive.add(worker)
        stage.worker(worker)
        stage.exit(worker, -11)
    (over,) = stage.told(RunOver)
    assert over.code == 1
    assert "logs/worker-2.log" in over.why


def test_what_raises_before_anything_began_ends_the_run_with_its_traceback(open_stage) -> None:
    stage = open_stage(start=2)
    stage.start(0)
    stage.hear(WorkerFailed(worker=1, traceback="Traceback\nValueError: no data"))
    (over,) = stage.told(RunOver)
    assert (over.code, over.traceback) == (1, "Traceback\nValueError: no data")
    assert stage.dismissed() == {0: 1}


def test_those_ready_begin_when_the_rest_cannot_come(open_stage) -> None:
    stage = open_stage(start=2)
    stage.start(0)
    for worker in (1, 2, 3):
        stage.exit(worker, 1)
    assert stage.newest.workers == (0,)
    assert stage.told(SetTarget)[-1].target == 1


# -- joining and leaving ---------------------------------------------------------------------------------


def test_a_ready_worker_joins_behind_the_older_ones(training) -> None:
    stage = training(2)
    stage.ask(AskResize(workers=4))
    stage.start(2, 3)
    assert (stage.newest.workers, stage.newest.planned) == ((0, 1, 2), True)
    stage.adopt()
    assert (stage.newest.workers, stage.newest.number) == ((0, 1, 2, 3), 3)


def test_one_change_at_a_time_and_only_from_a_settled_roster(training) -> None:
    stage = training(2)
    stage.ask(AskResize(workers=4))
    stage.start(2)
    stage.adopt(0, 1)
    stage.start(3)
    assert [generation.number for generation in stage.proposals] == [2]
    stage.adopt(2, complete=False)
    assert stage.newest.workers == (0, 1, 2, 3)


def test_a_drained_worker_leaves_at_a_boundary_and_goes_once_the_others_hold_everything(training) -> None:
    stage = training(3)
    assert stage.ask(AskDrain(worker=1)).ok
    assert (stage.newest.workers, stage.newest.planned) == ((0, 2), True)
    assert stage.told(SetTarget)[-1] == SetTarget(target=2, drain=(1,), by_hand=True)
    stage.worker(1, state="leaving", newest=stage.newest)
    stage.adopt(0)
    stage.adopt(2, complete=False)
    assert stage.dismissed() == {}
    stage.adopt(2)
    assert stage.dismissed() == {1: 0}
    stage.exit(1, 0)
    assert stage.kinds("worker.left", "worker.died", "run.failed") == ["worker.left"]
    assert stage.told(KillWorker) == []


def test_nobody_who_is_to_leave_waits_for_a_joiner_that_still_receives_its_copy(training) -> None:
    stage = training(2)
    stage.ask(AskResize(workers=3))
    stage.start(2)
    stage.adopt(0, 1)
    stage.adopt(2, complete=False)
    assert stage.ask(AskDrain(worker=1)).ok
    assert stage.newest.workers == (0, 2)
    stage.worker(1, state="leaving", newest=stage.newest)
    stage.adopt(0)
    stage.adopt(2, complete=False)
    assert stage.dismissed() == {}  # it may still be asked for values
    stage.step(1, 0, 2, generation=stage.newest.number)
    assert stage.dismissed() == {1: 0}


def test_with_a_few_copies_a_leaver_waits_until_all_hold_what_they_should(training) -> None:
    stage = training(3, copies=2)
    stage.ask(AskResize(workers=4))
    stage.start(3)
    stage.adopt(0, 1, 2)
    stage.adopt(3, complete=False)
    assert stage.ask(AskDrain(worker=1)).ok
    assert stage.newest.workers == (0, 1, 2, 3)
    stage.adopt(3)
    assert stage.newest.workers == (0, 2, 3)


def test_a_smaller_run_lets_the_newest_go(training) -> None:
    stage = training(4)
    stage.ask(AskResize(workers=2))
    assert stage.newest.workers == (0, 1)
    assert stage.kinds("resize.requested") == ["resize.requested"]


def test_the_state_stays_when_the_only_complete_worker_is_drained(training) -> None:
    stage = training(1, high=2)
    stage.ask(AskResize(workers=2))
    stage.alive.add(1)
    stage.agent(target=2)
    assert stage.ask(AskDrain(worker=0)).ok
    assert stage.proposals == []
    stage.worker(1, state="ready")
    assert stage.newest.workers == (0, 1)
    stage.adopt(0)
    stage.adopt(1, complete=False)
    assert stage.newest.workers == (0, 1)
    stage.adopt(1)
    assert stage.newest.workers == (1,)


@pytest.mark.parametrize(
    ("question", "why"),
    [
        (AskResize(workers=0), "0 workers are outside this run's limits of 1 to 8"),
        (AskResize(workers=9), "9 workers are outside this run's limits of 1 to 8"),
        (AskResize(workers=3, limits=(4, 6)), "3 workers are outside this run's limits of 4 to 6"),
        (AskResize(workers=9, limits=(1, 12)), "9 workers cannot share 8 virtual ranks: choose at most 8"),
        (AskDrain(worker=7), "no worker 7 in this run; running: 0, 1"),
    ],
)
def test_what_cannot_be_is_refused_in_a_sentence_and_changes_nothing(training, question, why) -> None:
    stage = training(2)
    before = stage.roster
    answer = stage.ask(question)
    assert (answer.ok, answer.why) == (False, why)
    assert stage.roster == before


def test_limits_that_a_controller_brings_win_over_those_the_run_began_with(training) -> None:
    stage = training(2, high=2)
    assert stage.ask(AskResize(workers=3, limits=(1, 4))).ok
    stage.alive.add(2)
    stage.agent(target=3)
    stage.worker(2, state="ready")
    assert stage.newest.workers == (0, 1, 2)


def test_the_last_worker_wanted_cannot_be_drained(training) -> None:
    stage = training(1)
    assert "elastane stop" in stage.ask(AskDrain(worker=0)).why


def test_processes_started_for_a_place_that_is_gone_are_sent_home(training) -> None:
    stage = training(2)
    stage.ask(AskResize(workers=4))
    stage.alive |= {2, 3}
    stage.target = 4
    stage.agent()
    stage.ask(AskResize(workers=2))
    assert stage.dismissed() == {2: 0, 3: 0}
    stage.exit(2, 0)
    assert stage.roster.troubles.failed_joins == 0


def test_the_agent_is_told_its_target_until_it_says_so(training) -> None:
    stage = training(2)
    stage.ask(AskResize(workers=3))
    stage.actions.clear()
    stage.agent()
    assert stage.told(SetTarget) == [SetTarget(target=3, by_hand=True)]
    stage.actions.clear()
    stage.agent(target=3)
    assert stage.told(SetTarget) == []


def test_it_is_known_whether_a_human_has_set_the_size(training) -> None:
    stage = training(2)
    assert not stage.ask(AskStatus()).by_hand
    assert stage.ask(AskResize(workers=2)).by_hand
    assert stage.told(SetTarget)[-1] == SetTarget(target=2, by_hand=True)
    # A controller that yields does not change it, however long ago it looked.
    refused = stage.ask(AskResize(workers=3, limits=(1, 8), unless_by_hand=True))
    assert (refused.ok, refused.why, refused.target) == (False, "a user has set its number of workers", 2)
    # Given back it is taken over as it is, and then changed.
    assert not stage.ask(AskResize(workers=2, limits=(1, 8))).by_hand
    assert stage.kinds("resize.requested") == []
    assert stage.ask(AskResize(workers=3, limits=(1, 8), unless_by_hand=True)).ok
    assert [event.who for event in stage.written if event.kind == "resize.requested"] == ["controller"]
    assert stage.ask(AskDrain(worker=1)).by_hand


def test_the_next_coordinator_knows_that_a_human_has_set_the_size(open_stage) -> None:
    stage = open_stage()
    stage.agent(target=2, by_hand=True)
    assert stage.ask(AskStatus()).by_hand


# -- dying -----------------------------------------------------------------------------------------------


def test_survivors_of_a_death_go_on_at_once(training) -> None:
    stage = training(3)
    stage.exit(1)
    assert (stage.newest.workers, stage.newest.planned) == ((0, 2), False)
    (event,) = [event for event in stage.events if event.kind == "worker.died"]
    assert (event.who, event.why) == ("worker 1", "killed by SIGKILL")


def test_the_first_word_of_a_death_counts_and_the_second_says_nothing_new(training) -> None:
    stage = training(3)
    stage.hear(lost(0, 1, generation=1))
    assert stage.newest.workers == (0, 2)
    assert stage.told(KillWorker) == [KillWorker(worker=1)]
    stage.hear(lost(2, 1, generation=1))
    stage.exit(1)
    assert [generation.number for generation in stage.proposals] == [2]
    assert stage.kinds("worker.died") == ["worker.died"]


def test_of_two_that_lose_each_other_the_first_to_say_so_stays(training) -> None:
    stage = training(2)
    stage.hear(lost(1, 0, generation=1))
    stage.hear(lost(0, 1, generation=1))
    assert stage.newest.workers == (1,)


def test_connections_of_a_generation_that_was_replaced_are_no_news(training) -> None:
    stage = training(3)
    stage.exit(1)
    stage.hear(lost(0, 2, generation=1))
    assert stage.newest.workers == (0, 2)
    stage.hear(lost(0, 2, generation=2))
    assert stage.newest.workers == (0,)


def test_a_joiner_nobody_has_adopted_is_left_out_when_a_member_dies(training) -> None:
    stage = training(2)
    stage.ask(AskResize(workers=3))
    stage.start(2)
    assert stage.newest.workers == (0, 1, 2)
    stage.exit(1)
    assert (stage.newest.workers, stage.newest.planned, stage.newest.number) == ((0,), False, 3)
    assert Propose(generation=stage.newest) in stage.told(Propose, 2)


def test_a_joiner_that_may_not_have_begun_is_set_aside_when_a_member_dies_and_joins_again(training) -> None:
    stage = training(2)
    stage.ask(AskResize(workers=3))
    stage.start(2)
    stage.adopt(0)
    stage.exit(1)
    assert stage.newest.workers == (0,)
    assert [leaver.worker for leaver in stage.newest.leaving] == [2]
    stage.adopt(0)
    assert stage.newest.workers == (0, 2)
    assert stage.newest.planned


def test_a_leaver_that_dies_before_its_boundary_does_not_stop_the_others(training) -> None:
    stage = training(3)
    stage.ask(AskDrain(worker=2))
    stage.exit(2)
    assert (stage.newest.workers, stage.newest.planned) == ((0, 1), False)


def test_a_death_during_a_regrouping_regroups_the_rest(training) -> None:
    stage = training(3)
    stage.exit(1)
    stage.adopt(0)
    stage.exit(2)
    assert stage.newest.workers == (0,)
    stage.adopt()
    assert stage.ask(AskStatus()).state == "training"


def test_a_replacement_joins_as_any_other(training) -> None:
    stage = training(2)
    stage.exit(0)
    stage.adopt()
    stage.start(2)
    assert (stage.newest.workers, stage.newest.planned) == ((1, 2), True)


def test_a_hung_worker_is_one_that_died_with_another_name(training) -> None:
    stage = training(2)
    stage.exit(1, hung=True)
    assert stage.kinds("worker.hung", "worker.died") == ["worker.hung"]
    assert stage.newest.workers == (0,)


def test_without_any_copy_of_the_state_the_run_is_over(training) -> None:
    stage = training(2, step=5)
    stage.exit(0)
    stage.exit(1)
    (over,) = stage.told(RunOver)
    assert over.code == 1
    assert "after step 5" in over.why
    assert "every copy died" in over.why


def test_a_survivor_may_still_say_that_it_had_become_complete(training) -> None:
    stage = training(1, high=2)
    stage.ask(AskResize(workers=2))
    stage.start(1)
    stage.adopt(0)
    stage.adopt(1, complete=False)
    stage.exit(0)
    assert stage.told(RunOver) == []
    stage.worker(1, complete=True)
    assert stage.newest.workers == (1,)


def test_a_survivor_that_stays_incomplete_cannot_go_on(training) -> None:
    stage = training(1, high=2)
    stage.ask(AskResize(workers=2))
    stage.start(1)
    stage.adopt(0)
    stage.adopt(1, complete=False)
    stage.exit(0)
    stage.wait(1.1)
    assert "no living worker holds the state" in stage.told(RunOver)[0].why


def test_when_every_copy_is_gone_the_end_says_how_they_died_and_nothing_of_what_comes_next(training) -> None:
    """Whether somebody resumes the run, and who, a coordinator does not know."""
    stage = training(2)
    stage.alive.clear()
    stage.exits = [WorkerExit(worker=worker, pid=100 + worker, code=-9) for worker in (0, 1)]
    stage.agent()
    (over,) = stage.told(RunOver)
    assert over.lost
    assert over.why == (
        "no living worker holds the state after step 5: every copy died (workers 0 and 1: killed by SIGKILL)"
    )


# -- the user's code -------------------------------------------------------------------------------------


def test_a_member_that_raises_ends_the_run_with_its_own_traceback(training) -> None:
    stage = training(2)
    stage.hear(WorkerFailed(worker=1, traceback="Traceback\nZeroDivisionError: division by zero"))
    (over,) = stage.told(RunOver)
    assert (over.code, over.why) == (1, "worker 1 failed: ZeroDivisionError: division by zero")
    assert stage.dismissed() == {0: 1}
    assert stage.kinds("run.failed") == ["run.failed"]


def test_a_joiner_that_raises_does_not_end_the_run(training) -> None:
    stage = training(2)
    stage.ask(AskResize(workers=3))
    stage.start(2)
    stage.hear(WorkerFailed(worker=2, traceback="MemoryError"))
    assert stage.told(RunOver) == []
    assert stage.kinds("worker.failed") == ["worker.failed"]
    assert (stage.newest.workers, stage.newest.planned) == ((0, 1), False)
    stage.exit(2, 1)
    assert stage.roster.troubles.failed_joins == 1


def test_a_script_that_just_ends_is_a_failure_unless_its_own_reason_arrives(training) -> None:
    stage = training(2)
    stage.exit(1, 0)
    assert stage.proposals == []
    stage.wait(0.6)
    (over,) = stage.told(RunOver)
    assert "the script ended in worker 1 (exit code 0) before the run's last step" in over.why


def test_the_traceback_wins_over_the_exit_code_it_races_with(training) -> None:
    stage = training(2)
    stage.exit(1, 1)
    stage.hear(WorkerFailed(worker=1, traceback="KeyError: 'x'"))
    (over,) = stage.told(RunOver)
    assert over.traceback == "KeyError: 'x'"


# -- the end ---------------------------------------------------------------------------------------------


def finish(stage, *workers: int, step: int = 100, **said: object) -> None:
    for worker in workers:
        stage.worker(worker, state="finished", step=step, **said)


def test_the_first_member_writes_the_model_and_all_go(training) -> None:
    stage = training(2, step=100)
    finish(stage, 0)
    assert stage.told(WriteModel) == []
    finish(stage, 1)
    assert len(stage.told(WriteModel, 0)) == 1
    written = {"model.safetensors": WrittenFile(7, "ab" * 16)}
    stage.hear(ModelWritten(worker=0, files=written))
    assert stage.told(RunOver)[0].code == 0
    assert stage.dismissed() == {0: 0, 1: 0}
    assert stage.kinds()[-1] == "run.finished"
    assert stage.events[-1].files == written


def test_the_next_one_writes_the_model_when_the_first_dies(training) -> None:
    stage = training(2, step=100)
    finish(stage, 0, 1)
    stage.exit(0)
    assert len(stage.told(WriteModel, 1)) == 1
    assert stage.told(Propose) == []


def test_a_stop_reaches_the_members_until_they_have_finished(training) -> None:
    stage = training(2, step=5)
    stage.ask(AskStop())
    assert stage.told(StopTraining, 0) == [StopTraining()]
    stage.worker(0)
    assert len(stage.told(StopTraining, 0)) == 2
    finish(stage, 0, 1, step=5, stopped=True)
    stage.hear(ModelWritten(worker=0))
    assert stage.told(RunOver)[0].code == 130
    assert stage.kinds()[-1] == "run.stopped"


def test_who_has_stopped_the_run_is_told_with_the_reason(training) -> None:
    stage = training(1, step=5)
    stage.ask(AskStop(who="controller", why="It is paused."))
    stage.ask(AskStop())
    (event,) = [one for one in stage.events if one.kind == "stop.requested"]
    assert event.who == "controller"
    assert event.why == "the run stops after the present step. It is paused."
    finish(stage, 0, step=5, stopped=True)
    stage.hear(ModelWritten(worker=0))
    (event,) = [one for one in stage.events if one.kind == "run.stopped"]
    assert (event.who, event.why) == ("controller", "stopped after step 5: It is paused")
    assert stage.told(RunOver)[0].why == event.why


def test_a_new_coordinator_that_was_not_asked_for_the_stop_says_of_nobody_that_they_asked(training) -> None:
    stage = training(1, step=5)
    stage.ask(AskStop(who="controller", why="It is paused."))
    stage = stage.successor()
    finish(stage, 0, step=5, stopped=True)
    stage.hear(ModelWritten(worker=0))
    (event,) = [one for one in stage.events if one.kind == "run.stopped"]
    assert (event.who, event.why) == ("", "stopped after step 5")


@pytest.mark.parametrize(("stopped", "kind"), [(True, "run.stopped"), (False, "run.finished")])
def test_a_stop_in_the_last_step_of_a_stream_is_told_from_its_end_by_the_workers(
    training, stopped, kind
) -> None:
    """How many steps a stream has nobody knows before."""
    stage = training(1, step=5)
    stage.roster = replace(stage.roster, pinned=msgspec.structs.replace(stage.roster.pinned, steps=0))
    stage.ask(AskStop())
    finish(stage, 0, step=5, stopped=stopped)
    stage.hear(ModelWritten(worker=0))
    assert stage.kinds()[-1] == kind


def test_when_all_die_before_the_model_is_written_the_run_may_have_another_attempt(training) -> None:
    stage = training(2, step=100)
    finish(stage, 0, 1)
    stage.exit(0)
    stage.exit(1)
    (over,) = stage.told(RunOver)
    assert over.lost
    assert over.why == (
        "every worker died after the last step, 100, before one had written the model "
        "(workers 0 and 1: killed by SIGKILL)"
    )
    assert stage.kinds()[-1] == "run.failed"


def test_a_model_whose_writers_died_after_it_was_there_is_enough(training) -> None:
    stage = training(1, step=98)
    finish(stage, 0)
    stage.hear(ModelWritten(worker=0))
    stage.exit(0)
    stage.step(99, 0)
    stage.step(100, 0)
    assert stage.told(RunOver)[0].code == 0


def test_a_run_that_its_script_has_ended_is_finished(training) -> None:
    stage = training(2, step=5)
    for worker in (0, 1):
        stage.worker(worker, state="finished", step=5, ending="good enough")
    stage.hear(ModelWritten(worker=0))
    (over,) = stage.told(RunOver)
    assert (over.code, over.why) == (0, "ended by its script after step 5: good enough")
    assert stage.kinds()[-1] == "run.finished"


def test_a_stop_before_anything_began_is_immediate(open_stage) -> None:
    stage = open_stage(start=2)
    stage.agent(stopping=True)
    assert stage.told(RunOver)[0].code == 130


def test_whoever_reports_after_the_end_hears_of_it_again(training) -> None:
    stage = training(1, step=100)
    finish(stage, 0)
    stage.hear(ModelWritten(worker=0))
    stage.actions.clear()
    stage.worker(0)
    stage.agent()
    assert stage.dismissed() == {0: 0}
    assert stage.told(RunOver)[0].code == 0


# -- a new coordinator -----------------------------------------------------------------------------------


def test_a_new_coordinator_changes_nothing_in_a_settled_run(training) -> None:
    stage = training(3).successor()
    stage.wait(2)
    assert stage.actions == []
    assert stage.newest.number == 1
    stage.ask(AskResize(workers=2))
    assert (stage.newest.number, stage.newest.term, stage.newest.workers) == (2, 2, (0, 1))


def test_a_new_coordinator_listens_before_it_decides(training) -> None:
    stage = training(3).successor(wait=False)
    stage.worker(0)
    stage.hear(lost(0, 1, generation=1))
    assert stage.proposals == []
    stage.worker(1)
    stage.worker(2)
    assert stage.newest.workers == (0, 2)


def test_a_new_coordinator_learns_of_the_death_of_a_member(training) -> None:
    stage = training(3)
    heir = stage.successor()
    heir.exit(1)
    assert (heir.newest.workers, heir.newest.term) == ((0, 2), 2)


def test_a_change_left_half_done_is_done_again_under_a_new_number(training) -> None:
    stage = training(2)
    stage.ask(AskResize(workers=3))
    stage.start(2)
    pending = stage.newest
    stage.worker(0, newest=pending)
    heir = stage.successor()
    assert (heir.newest.number, heir.newest.workers, heir.newest.planned) == (3, (0, 1), False)
    heir.adopt()
    assert heir.newest.workers == (0, 1, 2)


def test_a_silent_member_is_waited_for(training) -> None:
    stage = training(2).successor(wait=False)
    stage.worker(0)
    stage.wait(1.5)
    assert stage.proposals == []
    stage.worker(1)
    assert stage.proposals == []
    assert stage.ask(AskStatus()).state == "training"


def test_an_outcome_already_written_is_the_outcome(training) -> None:
    stage = training(1, step=100)
    finish(stage, 0)
    stage.hear(ModelWritten(worker=0))
    heir = stage.successor()
    assert heir.told(RunOver)[0].code == 0
    assert heir.dismissed() == {0: 0}
    assert heir.events == []


def test_a_drain_survives_the_coordinator(training) -> None:
    stage = training(3)
    stage.target = 2
    heir = stage.successor(wait=False, draining=(0,))
    for worker in (0, 1, 2):
        heir.worker(worker)
    assert (heir.newest.workers, heir.newest.planned) == ((1, 2), True)


# -- messages come late, twice, in the wrong order -------------------------------------------------------


def test_a_report_overtaken_by_a_later_one_is_ignored(training) -> None:
    stage = training(2)
    old = stage.reports[0]
    stage.worker(0, step=9)
    before = stage.roster
    stage.hear(old)
    assert stage.roster == before


def test_everything_may_be_heard_twice(training) -> None:
    stage = training(3)
    for _ in range(2):
        stage.hear(lost(0, 1, generation=1))
        stage.agent()
        stage.worker(2)
    assert [generation.number for generation in stage.proposals] == [2]


def test_what_a_worker_saw_is_written_once_per_key(training) -> None:
    stage = training(2)
    event = EventLine(time=1.0, kind="evaluation", detail={"accuracy": 0.9})
    for worker in (0, 1):
        stage.hear(WorkerEvent(worker=worker, key="evaluation 5", event=event))
    assert stage.kinds("evaluation") == ["evaluation"]
    heir = stage.successor()
    heir.hear(WorkerEvent(worker=0, key="evaluation 5", event=event))
    assert heir.events == []


def test_what_everybody_has_said_is_not_remembered_for_ever_and_still_written_once(training) -> None:
    stage = training(2, step=5)
    for step in range(6, 60):
        stage.step(step, 0, 1)
        for worker in (0, 1):
            line = EventLine(time=1.0, kind="message", step=step)
            stage.hear(WorkerEvent(worker=worker, key=f"print-{step}-1", event=line))
    assert len(stage.kinds("message")) == 54
    assert len(stage.roster.events.keys) <= 2
    stage.hear(WorkerEvent(worker=1, key="print-7-1", event=EventLine(time=1.0, kind="message", step=7)))
    assert len(stage.kinds("message")) == 54


def test_what_one_has_not_said_yet_is_remembered(training) -> None:
    stage = training(2, step=5)
    events = {step: EventLine(time=1.0, kind="message", step=step) for step in range(6, 60)}
    for step, event in events.items():
        stage.step(step, 0)
        stage.hear(WorkerEvent(worker=0, key=f"print-{step}-1", event=event))
    for step, event in events.items():
        stage.step(step, 1)
        stage.hear(WorkerEvent(worker=1, key=f"print-{step}-1", event=event))
    assert len(stage.kinds("message")) == 54


def test_that_a_worker_waits_for_its_data_is_written_once_each_time_it_does(training) -> None:
    stage = training(2)
    for awaiting in ((1,), (1,), (), (1,)):
        stage.agent(awaiting_data=awaiting)
    assert [event.who for event in stage.events if event.kind == "data.awaited"] == ["worker 1", "worker 1"]
    assert stage.proposals == []


# -- pauses and status -----------------------------------------------------------------------------------


def test_a_generation_is_on_record_once_all_have_told_how_long_its_first_step_took(training) -> None:
    stage = training(2, step=5)
    stage.ask(AskResize(workers=3))
    stage.start(2)
    stage.adopt()
    shares = {0: 4, 1: 2, 2: 2}
    stage.step(6, 0, seconds=0.15, generation=2, shares=shares)
    stage.step(6, 2, seconds=0.9, generation=2, shares=shares, healthy=False)
    assert stage.kinds("generation.started") == []
    stage.step(6, 1, seconds=0.1, generation=2, shares=shares)
    (event,) = [event for event in stage.events if event.kind == "generation.started"]
    assert (event.workers, event.step, event.generation) == ((0, 1, 2), 6, 2)
    assert event.pause_ms == pytest.approx({0: 50.0, 1: 0.0})
    assert event.pause_steps == pytest.approx({0: 0.5, 1: 0.0})


def test_the_status_names_every_process(training) -> None:
    stage = training(2, step=5)
    answer = stage.ask(AskStatus())
    assert [(row.role, row.worker, row.state) for row in answer.processes] == [
        ("agent", None, "running"),
        ("coordinator", None, "term 1"),
        ("worker", 0, "member"),
        ("worker", 1, "member"),
    ]
    assert (answer.step, answer.steps, answer.generation, answer.target) == (5, 100, 1, 2)
    assert answer.loss == pytest.approx(0.2)
