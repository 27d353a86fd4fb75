"""Stories of membership: beginnings, joins, leaves, deaths and new coordinators."""

from dataclasses import replace

import msgspec
import pytest

from elastane.run.coordinator import decide
from elastane.run.coordinator.event_summary import summarize_events
from elastane.run.nouns.checkpoints import WrittenFile
from elastane.run.nouns.control import (
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
from elastane.run.nouns.membership import NodeAddress
from elastane.run.nouns.records import EventLine
from elastane.run.nouns.spec import Probe

from .conftest import PINNED, make_line


def make_loss(worker: int, peer: int) -> PeerLost:
    return PeerLost(worker=worker, peer=peer)


def make_order(target: int, **others: object) -> SetTarget:
    """Return the order for the only node of a run."""
    return SetTarget(target=target, total=target, nodes=(NodeAddress(""),), **others)


# -- eviction --------------------------------------------------------------------------------------------


def list_evicted(stage) -> list[int]:
    return [kill.worker for kill in stage.list_messages(KillWorker)]


def test_only_workers_that_do_not_leave_in_time_are_killed(training) -> None:
    stage = training(3)
    stage.ask(AskResize(workers=2))
    assert stage.newest.workers == (0, 1)
    stage.ask(AskEvict())
    assert list_evicted(stage) == [2]
    assert "did not leave in time" in stage.list_messages(KillWorker)[0].why


def test_a_process_that_remains_after_it_has_left_training_is_killed(training) -> None:
    stage = training(3)
    stage.ask(AskResize(workers=2))
    stage.adopt(0, 1)
    stage.report_worker(2, state="leaving", newest=stage.newest)
    assert stage.list_dismissals() == {2: 0}
    stage.ask(AskEvict())
    assert list_evicted(stage) == [2]
    stage.end_worker(2, -9)
    stage.ask(AskEvict())
    assert list_evicted(stage) == [2]


def test_workers_are_killed_even_if_their_leave_cannot_be_planned(training) -> None:
    stage = training(2)
    stage.alive.add(2)
    stage.ask(AskResize(workers=3))
    stage.report_worker(2, state="ready", pinned=stage.roster.pinned)
    stage.ask(AskResize(workers=1))
    assert stage.newest.workers == (0, 1, 2)
    stage.ask(AskEvict())
    assert list_evicted(stage) == [1, 2]


def test_no_worker_is_killed_while_none_must_leave(training) -> None:
    stage = training(2)
    stage.ask(AskEvict())
    assert stage.list_messages(KillWorker) == []


# -- the first generation --------------------------------------------------------------------------------


def test_the_run_begins_once_the_requested_number_of_workers_is_ready(open_stage) -> None:
    stage = open_stage(start=2)
    stage.start(0)
    stage.alive.add(1)
    stage.report_agent(target=2)
    assert stage.proposals == []
    stage.report_worker(1, state="ready")
    (first,) = stage.proposals
    assert (first.number, first.workers, first.planned) == (1, (0, 1), False)
    assert [member.port for member in first.members] == [5000, 5001]


def test_a_lost_proposal_is_repeated_after_the_next_report(open_stage) -> None:
    stage = open_stage(start=1)
    stage.start(0)
    stage.actions.clear()
    stage.report_worker(0)
    assert stage.list_messages(Propose, 0) == [Propose(generation=stage.newest)]
    stage.actions.clear()
    stage.report_worker(0, newest=stage.newest)
    assert stage.list_messages(Propose) == []


def test_the_first_report_of_the_script_pins_it_and_another_script_is_refused(open_stage) -> None:
    stage = open_stage(start=2)
    stage.start(0)
    stage.alive.add(1)
    other = msgspec.structs.replace(stage.roster.pinned, threads=4, seed=7)
    stage.report_worker(1, state="ready", pinned=other)
    (why,) = [event.why for event in stage.events if event.kind == "worker.refused"]
    assert "threads is 4, but the run's is 1" in why
    assert "seed is 7, but the run's is 0" in why
    assert stage.list_dismissals() == {1: 1}
    assert stage.proposals == []


ADAMW = "AdamW(amsgrad=False, betas=(0.9, 0.999), lr={})"


@pytest.mark.parametrize("other_state", ["", "starting", "ready"])
def test_a_run_whose_first_worker_has_another_script_fails_at_once(open_stage, other_state) -> None:
    stage = open_stage(start=2)
    stage.roster = replace(
        stage.roster, pinned=msgspec.structs.replace(PINNED, optimizer=ADAMW.format(0.001))
    )
    if other_state:
        stage.alive.add(0)
        stage.report_worker(0, state=other_state, pinned=stage.roster.pinned)
    stage.alive.add(1)
    other = msgspec.structs.replace(PINNED, optimizer=ADAMW.format(0.01))
    stage.report_worker(1, state="ready", pinned=other)
    refused, failed = (
        [e.why for e in stage.events if e.kind == kind] for kind in ("worker.refused", "run.failed")
    )
    assert "optimizer is AdamW(lr=0.01), but the run's is AdamW(lr=0.001)" in refused[0]
    assert failed == ([] if other_state else refused)


def build_probe(result: str, values: str = "the same", **machine: str) -> Probe:
    return Probe(values=values, result=result, machine=machine)


def report_probes(stage, first: Probe | None, second: Probe | None) -> list[str]:
    """Report two rehearsed workers; return why the second is refused."""
    stage.start(0)
    stage.alive.add(1)
    pinned = stage.roster.pinned
    stage.report_worker(0, state="ready", pinned=msgspec.structs.replace(pinned, probe=first))
    stage.report_worker(1, state="ready", pinned=msgspec.structs.replace(pinned, probe=second))
    return [event.why for event in stage.events if event.kind == "worker.refused"]


def test_a_worker_whose_machine_computes_other_bits_is_refused_with_the_facts_that_differ(open_stage) -> None:
    stage = open_stage(start=2)
    first, second = build_probe("aa", CPU="X", MKL="1"), build_probe("bb", CPU="Y", MKL="1")
    (why,) = report_probes(stage, first, second)
    assert "computes other bits" in why
    assert "its CPU is 'Y', the run's is 'X'" in why
    assert "MKL" not in why
    assert stage.list_dismissals() == {1: 1}
    assert stage.proposals == []


def test_a_difference_that_no_fact_explains_is_refused_and_said_to_be_unknown(open_stage) -> None:
    (why,) = report_probes(open_stage(start=2), build_probe("aa", CPU="X"), build_probe("bb", CPU="X"))
    assert "no known fact differs" in why


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (build_probe("aa", CPU="X"), build_probe("aa", CPU="Y")),
        (build_probe("aa"), None),
        (None, build_probe("bb")),
        (build_probe("aa"), build_probe("bb", values="others")),
    ],
    ids=["equal bits of two CPUs", "a joiner without one", "a run without one", "other values"],
)
def test_probes_that_are_equal_missing_or_not_comparable_refuse_nobody(open_stage, first, second) -> None:
    stage = open_stage(start=2)
    assert report_probes(stage, first, second) == []
    assert stage.newest.workers == (0, 1)
    assert stage.roster.pinned.probe == (first or second)


def test_the_first_worker_of_an_attempt_with_other_processes_says_how_it_divides_the_model(
    open_stage,
) -> None:
    stage = open_stage(start=2)
    unknown = msgspec.structs.replace(PINNED, division=None, blocks=9)
    stage.roster = replace(stage.roster, pinned=unknown)
    stage.start(0)
    assert stage.roster.pinned == PINNED
    stage.alive.add(1)
    stage.report_worker(1, state="ready", pinned=msgspec.structs.replace(PINNED, division="quarters"))
    (refused,) = [event.why for event in stage.events if event.kind == "worker.refused"]
    assert "division is 'quarters', but the run's is ''" in refused


def test_after_three_failed_joins_in_a_row_the_run_continues_without_replacements(training) -> None:
    stage = training(2)
    stage.target = 3
    stage.report_agent()
    stage.ask(AskResize(workers=3))
    for worker in (2, 3, 4):
        stage.alive.add(worker)
        stage.report_worker(worker)
        stage.end_worker(worker, 1)
    assert stage.list_messages(SetTarget)[-1].target == 2
    assert stage.roster.wanted.target == 2
    (event,) = [event for event in stage.events if event.who == "coordinator" and "3 workers" in event.why]
    assert "worker 4: exit code 1" in event.why


def test_a_run_without_workers_fails_after_three_failed_joins(open_stage) -> None:
    stage = open_stage(start=1)
    for worker in (0, 1, 2):
        stage.alive.add(worker)
        stage.report_worker(worker)
        stage.end_worker(worker, -11)
    (over,) = stage.list_messages(RunOver)
    assert over.code == 1
    assert "logs/worker-2.log" in over.why


def test_an_error_before_the_first_generation_ends_the_run_with_its_traceback(open_stage) -> None:
    stage = open_stage(start=2)
    stage.start(0)
    stage.receive(WorkerFailed(worker=1, traceback="Traceback\nValueError: no data"))
    (over,) = stage.list_messages(RunOver)
    assert (over.code, over.traceback) == (1, "Traceback\nValueError: no data")
    assert stage.list_dismissals() == {0: 1}


def test_the_ready_workers_begin_when_the_others_cannot_join(open_stage) -> None:
    stage = open_stage(start=2)
    stage.start(0)
    for worker in (1, 2, 3):
        stage.end_worker(worker, 1)
    assert stage.newest.workers == (0,)
    assert stage.list_messages(SetTarget)[-1].target == 1


# -- joining and leaving ---------------------------------------------------------------------------------


def test_a_ready_worker_joins_after_the_older_ones(training) -> None:
    stage = training(2)
    stage.ask(AskResize(workers=4))
    stage.start(2, 3)
    assert (stage.newest.workers, stage.newest.planned) == ((0, 1, 2), True)
    stage.adopt()
    assert (stage.newest.workers, stage.newest.number) == ((0, 1, 2, 3), 3)


def test_changes_are_planned_one_at_a_time_in_a_settled_generation(training) -> None:
    stage = training(2)
    stage.ask(AskResize(workers=4))
    stage.start(2)
    stage.adopt(0, 1)
    stage.start(3)
    assert [generation.number for generation in stage.proposals] == [2]
    stage.adopt(2, complete=False)
    assert stage.newest.workers == (0, 1, 2, 3)


def test_a_drained_worker_is_dismissed_once_the_others_hold_all_state(training) -> None:
    stage = training(3)
    assert stage.ask(AskDrain(worker=1)).ok
    assert (stage.newest.workers, stage.newest.planned) == ((0, 2), True)
    assert stage.list_messages(SetTarget)[-1] == make_order(2, drain=(1,), by_hand=True)
    stage.report_worker(1, state="leaving", newest=stage.newest)
    stage.adopt(0)
    stage.adopt(2, complete=False)
    assert stage.list_dismissals() == {}
    stage.adopt(2)
    assert stage.list_dismissals() == {1: 0}
    stage.end_worker(1, 0)
    assert stage.list_kinds("worker.left", "worker.died", "run.failed") == ["worker.left"]
    assert stage.list_messages(KillWorker) == []


def test_a_leaver_does_not_wait_for_a_joiner_that_still_receives_its_copy(training) -> None:
    stage = training(2)
    stage.ask(AskResize(workers=3))
    stage.start(2)
    stage.adopt(0, 1)
    stage.adopt(2, complete=False)
    assert stage.ask(AskDrain(worker=1)).ok
    assert stage.newest.workers == (0, 2)
    stage.report_worker(1, state="leaving", newest=stage.newest)
    stage.adopt(0)
    stage.adopt(2, complete=False)
    assert stage.list_dismissals() == {}  # a member may still request values
    stage.report_step(1, 0, 2, generation=stage.newest.number)
    assert stage.list_dismissals() == {1: 0}


def test_with_sharded_copies_a_leaver_waits_until_all_members_are_complete(training) -> None:
    stage = training(3, copies=2)
    stage.ask(AskResize(workers=4))
    stage.start(3)
    stage.adopt(0, 1, 2)
    stage.adopt(3, complete=False)
    assert stage.ask(AskDrain(worker=1)).ok
    assert stage.newest.workers == (0, 1, 2, 3)
    stage.adopt(3)
    assert stage.newest.workers == (0, 2, 3)


def test_a_smaller_target_removes_the_newest_workers(training) -> None:
    stage = training(4)
    stage.ask(AskResize(workers=2))
    assert stage.newest.workers == (0, 1)
    assert stage.list_kinds("resize.requested") == ["resize.requested"]


def test_the_only_complete_worker_leaves_after_another_is_complete(training) -> None:
    stage = training(1, high=2)
    stage.ask(AskResize(workers=2))
    stage.alive.add(1)
    stage.report_agent(target=2)
    assert stage.ask(AskDrain(worker=0)).ok
    assert stage.proposals == []
    stage.report_worker(1, state="ready")
    assert stage.newest.workers == (0, 1)
    stage.adopt(0)
    stage.adopt(1, complete=False)
    assert stage.newest.workers == (0, 1)
    stage.adopt(1)
    assert stage.newest.workers == (1,)


@pytest.mark.parametrize(
    ("question", "why"),
    [
        (AskResize(workers=0), "0 workers are outside this run's limits: choose 1 to 8"),
        (AskResize(workers=9), "9 workers are outside this run's limits: choose 1 to 8"),
        (AskResize(workers=3, limits=(4, 6)), "3 workers are outside this run's limits: choose 4 to 6"),
        (AskResize(workers=9, limits=(1, 12)), "9 workers cannot share 8 virtual ranks: choose at most 8"),
        (AskDrain(worker=7), "no worker 7 in this run; running: 0, 1"),
    ],
)
def test_an_impossible_request_is_refused_with_a_reason_and_changes_nothing(training, question, why) -> None:
    stage = training(2)
    before = stage.roster
    answer = stage.ask(question)
    assert (answer.ok, answer.why) == (False, why)
    assert stage.roster == before


def test_a_user_requests_only_a_legal_size(training) -> None:
    stage = training(2)
    stage.roster = replace(stage.roster, spec=msgspec.structs.replace(stage.roster.spec, sizes=(1, 2, 4, 8)))
    before = stage.roster
    answer = stage.ask(AskResize(workers=3))
    assert (answer.ok, answer.why) == (False, "3 is not a legal size of this run: choose 1, 2, 4, 8")
    assert stage.roster == before
    assert stage.ask(AskResize(workers=4)).ok


def test_limits_of_a_controller_override_those_of_the_run(training) -> None:
    stage = training(2, high=2)
    assert stage.ask(AskResize(workers=3, limits=(1, 4))).ok
    stage.alive.add(2)
    stage.report_agent(target=3)
    stage.report_worker(2, state="ready")
    assert stage.newest.workers == (0, 1, 2)


def test_the_last_worker_cannot_be_drained(training) -> None:
    stage = training(1)
    assert "elastane stop" in stage.ask(AskDrain(worker=0)).why


def test_processes_beyond_a_lowered_target_are_dismissed(training) -> None:
    stage = training(2)
    stage.ask(AskResize(workers=4))
    stage.alive |= {2, 3}
    stage.target = 4
    stage.report_agent()
    stage.ask(AskResize(workers=2))
    assert stage.list_dismissals() == {2: 0, 3: 0}
    stage.end_worker(2, 0)
    assert stage.roster.troubles.failed_joins == {}


def test_the_target_is_sent_until_the_agent_reports_it(training) -> None:
    stage = training(2)
    stage.ask(AskResize(workers=3))
    stage.actions.clear()
    stage.report_agent()
    assert stage.list_messages(SetTarget) == [make_order(3, by_hand=True)]
    stage.actions.clear()
    stage.report_agent(target=3, total=3)
    assert stage.list_messages(SetTarget) == []


def test_the_status_says_whether_a_user_has_set_the_size(training) -> None:
    stage = training(2)
    assert not stage.ask(AskStatus()).by_hand
    assert stage.ask(AskResize(workers=2)).by_hand
    assert stage.list_messages(SetTarget)[-1] == make_order(2, by_hand=True)
    # A controller that respects the user's number does not change it.
    refused = stage.ask(AskResize(workers=3, limits=(1, 8), unless_by_hand=True))
    assert (refused.ok, refused.why, refused.target) == (False, "a user has set its number of workers", 2)
    # After the user has given it back, the controller keeps the number and may then change it.
    assert not stage.ask(AskResize(workers=2, limits=(1, 8))).by_hand
    assert stage.list_kinds("resize.requested") == []
    assert stage.ask(AskResize(workers=3, limits=(1, 8), unless_by_hand=True)).ok
    assert [event.who for event in stage.written if event.kind == "resize.requested"] == ["controller"]
    assert stage.ask(AskDrain(worker=1)).by_hand


def test_the_next_coordinator_knows_that_a_user_has_set_the_size(open_stage) -> None:
    stage = open_stage()
    stage.report_agent(target=2, by_hand=True)
    assert stage.ask(AskStatus()).by_hand


# -- deaths ----------------------------------------------------------------------------------------------


def test_survivors_of_a_death_continue_at_once(training) -> None:
    stage = training(3)
    stage.end_worker(1)
    assert (stage.newest.workers, stage.newest.planned) == ((0, 2), False)
    (event,) = [event for event in stage.events if event.kind == "worker.died"]
    assert (event.who, event.why) == ("worker 1", "killed by SIGKILL")


def test_a_second_report_of_a_death_changes_nothing(training) -> None:
    stage = training(3)
    stage.receive(make_loss(0, 1))
    stage.receive(make_loss(2, 1))
    assert stage.newest.workers == (0, 2)
    assert stage.list_messages(KillWorker) == [KillWorker(worker=1)]
    stage.receive(make_loss(2, 1))
    stage.end_worker(1)
    assert [generation.number for generation in stage.proposals] == [2]
    assert stage.list_kinds("worker.died") == ["worker.died"]


def test_of_two_workers_that_lose_each_other_the_first_to_report_stays(training) -> None:
    stage = training(2)
    stage.receive(make_loss(1, 0))
    stage.receive(make_loss(0, 1))
    assert stage.newest.workers == (1,)


def test_a_planned_joiner_is_left_out_when_a_member_dies(training) -> None:
    stage = training(2)
    stage.ask(AskResize(workers=3))
    stage.start(2)
    assert stage.newest.workers == (0, 1, 2)
    stage.end_worker(1)
    assert (stage.newest.workers, stage.newest.planned, stage.newest.number) == ((0,), False, 3)
    assert Propose(generation=stage.newest) in stage.list_messages(Propose, 2)


def test_a_joiner_that_may_not_have_begun_joins_again_after_a_death(training) -> None:
    stage = training(2)
    stage.ask(AskResize(workers=3))
    stage.start(2)
    stage.adopt(0)
    stage.end_worker(1)
    assert stage.newest.workers == (0,)
    assert [leaver.worker for leaver in stage.newest.leaving] == [2]
    stage.adopt(0)
    assert stage.newest.workers == (0, 2)
    assert stage.newest.planned


def test_a_leaver_that_dies_before_its_boundary_does_not_stop_the_others(training) -> None:
    stage = training(3)
    stage.ask(AskDrain(worker=2))
    stage.end_worker(2)
    assert (stage.newest.workers, stage.newest.planned) == ((0, 1), False)


def test_a_death_during_a_regrouping_regroups_the_rest(training) -> None:
    stage = training(3)
    stage.end_worker(1)
    stage.adopt(0)
    stage.end_worker(2)
    assert stage.newest.workers == (0,)
    stage.adopt()
    assert stage.ask(AskStatus()).state == "training"


def test_a_replacement_joins_like_any_other_worker(training) -> None:
    stage = training(2)
    stage.end_worker(0)
    stage.adopt()
    stage.start(2)
    assert (stage.newest.workers, stage.newest.planned) == ((1, 2), True)


def test_a_hung_worker_is_handled_as_a_dead_one(training) -> None:
    stage = training(2)
    stage.end_worker(1, hung=True)
    assert stage.list_kinds("worker.hung", "worker.died") == ["worker.hung"]
    assert stage.newest.workers == (0,)


def test_without_a_copy_of_the_state_the_run_fails(training) -> None:
    stage = training(2, step=5)
    stage.end_worker(0)
    stage.end_worker(1)
    (over,) = stage.list_messages(RunOver)
    assert over.code == 1
    assert "after step 5" in over.why
    assert "every copy died" in over.why


def test_a_late_report_of_complete_state_saves_the_run(training) -> None:
    stage = training(1, high=2)
    stage.ask(AskResize(workers=2))
    stage.start(1)
    stage.adopt(0)
    stage.adopt(1, complete=False)
    stage.end_worker(0)
    assert stage.list_messages(RunOver) == []
    stage.report_worker(1, complete=True)
    assert stage.newest.workers == (1,)


def test_a_survivor_without_complete_state_cannot_continue(training) -> None:
    stage = training(1, high=2)
    stage.ask(AskResize(workers=2))
    stage.start(1)
    stage.adopt(0)
    stage.adopt(1, complete=False)
    stage.end_worker(0)
    stage.wait(1.1)
    assert "no living worker holds the state" in stage.list_messages(RunOver)[0].why


def test_the_failure_of_a_run_without_copies_names_the_causes_of_death(training) -> None:
    """A coordinator does not know whether the run will be resumed."""
    stage = training(2)
    stage.alive.clear()
    stage.exits = [WorkerExit(worker=worker, pid=100 + worker, code=-9) for worker in (0, 1)]
    stage.report_agent()
    (over,) = stage.list_messages(RunOver)
    assert over.lost
    assert over.why == (
        "no living worker holds the state after step 5: every copy died (workers 0 and 1: killed by SIGKILL)"
    )


# -- errors of the script --------------------------------------------------------------------------------


def test_a_member_that_raises_ends_the_run_with_its_own_traceback(training) -> None:
    stage = training(2)
    stage.receive(WorkerFailed(worker=1, traceback="Traceback\nZeroDivisionError: division by zero"))
    (over,) = stage.list_messages(RunOver)
    assert (over.code, over.why) == (1, "worker 1 failed: ZeroDivisionError: division by zero")
    assert stage.list_dismissals() == {0: 1}
    assert stage.list_kinds("run.failed") == ["run.failed"]


def test_a_joiner_that_raises_does_not_end_the_run(training) -> None:
    stage = training(2)
    stage.ask(AskResize(workers=3))
    stage.start(2)
    stage.receive(WorkerFailed(worker=2, traceback="MemoryError"))
    assert stage.list_messages(RunOver) == []
    assert stage.list_kinds("worker.failed") == ["worker.failed"]
    assert (stage.newest.workers, stage.newest.planned) == ((0, 1), False)
    stage.end_worker(2, 1)
    assert stage.roster.troubles.failed_joins == {"": 1}


def test_a_script_that_ends_early_fails_the_run(training) -> None:
    stage = training(2)
    stage.end_worker(1, 0)
    assert stage.proposals == []
    stage.wait(0.6)
    (over,) = stage.list_messages(RunOver)
    assert "the script ended in worker 1 (exit code 0) before the run's last step" in over.why


def test_a_traceback_replaces_the_exit_code(training) -> None:
    stage = training(2)
    stage.end_worker(1, 1)
    stage.receive(WorkerFailed(worker=1, traceback="KeyError: 'x'"))
    (over,) = stage.list_messages(RunOver)
    assert over.traceback == "KeyError: 'x'"


# -- the end ---------------------------------------------------------------------------------------------


def finish(stage, *workers: int, step: int = 100, **changes: object) -> None:
    for worker in workers:
        stage.report_worker(worker, state="finished", step=step, **changes)


def test_the_first_member_writes_the_model_before_all_are_dismissed(training) -> None:
    stage = training(2, step=100)
    finish(stage, 0)
    assert stage.list_messages(WriteModel) == []
    finish(stage, 1)
    assert len(stage.list_messages(WriteModel, 0)) == 1
    written = {"model.safetensors": WrittenFile(7, "ab" * 16)}
    stage.receive(ModelWritten(worker=0, files=written))
    assert stage.list_messages(RunOver)[0].code == 0
    assert stage.list_dismissals() == {0: 0, 1: 0}
    assert stage.list_kinds()[-1] == "run.finished"
    assert stage.events[-1].files == written


def test_the_next_member_writes_the_model_if_the_first_dies(training) -> None:
    stage = training(2, step=100)
    finish(stage, 0, 1)
    stage.end_worker(0)
    assert len(stage.list_messages(WriteModel, 1)) == 1
    assert stage.list_messages(Propose) == []


def test_a_stop_is_sent_until_the_members_have_finished(training) -> None:
    stage = training(2, step=5)
    stage.ask(AskStop())
    assert stage.list_messages(StopTraining, 0) == [StopTraining()]
    stage.report_worker(0)
    assert len(stage.list_messages(StopTraining, 0)) == 2
    finish(stage, 0, 1, step=5, stopped=True)
    stage.receive(ModelWritten(worker=0))
    assert stage.list_messages(RunOver)[0].code == 130
    assert stage.list_kinds()[-1] == "run.stopped"


def test_the_events_name_the_author_and_the_reason_of_a_stop(training) -> None:
    stage = training(1, step=5)
    stage.ask(AskStop(who="controller", why="It is paused."))
    stage.ask(AskStop())
    (event,) = [one for one in stage.events if one.kind == "stop.requested"]
    assert event.who == "controller"
    assert event.why == "the run stops after the present step. It is paused."
    finish(stage, 0, step=5, stopped=True)
    stage.receive(ModelWritten(worker=0))
    (event,) = [one for one in stage.events if one.kind == "run.stopped"]
    assert (event.who, event.why) == ("controller", "stopped after step 5: It is paused")
    assert stage.list_messages(RunOver)[0].why == event.why


def test_a_new_coordinator_does_not_name_an_author_of_an_earlier_stop(training) -> None:
    stage = training(1, step=5)
    stage.ask(AskStop(who="controller", why="It is paused."))
    stage = stage.start_successor()
    finish(stage, 0, step=5, stopped=True)
    stage.receive(ModelWritten(worker=0))
    (event,) = [one for one in stage.events if one.kind == "run.stopped"]
    assert (event.who, event.why) == ("", "stopped after step 5")


@pytest.mark.parametrize(("stopped", "kind"), [(True, "run.stopped"), (False, "run.finished")])
def test_reports_distinguish_a_stop_in_the_last_step_of_a_stream_from_its_end(
    training, stopped, kind
) -> None:
    """The number of steps of a stream is not known before its end."""
    stage = training(1, step=5)
    stage.roster = replace(stage.roster, pinned=msgspec.structs.replace(stage.roster.pinned, steps=0))
    stage.ask(AskStop())
    finish(stage, 0, step=5, stopped=stopped)
    stage.receive(ModelWritten(worker=0))
    assert stage.list_kinds()[-1] == kind


def test_the_run_can_be_resumed_if_all_die_before_the_model_is_written(training) -> None:
    stage = training(2, step=100)
    finish(stage, 0, 1)
    stage.end_worker(0)
    stage.end_worker(1)
    (over,) = stage.list_messages(RunOver)
    assert over.lost
    assert over.why == (
        "every worker died after the last step, 100, before one had written the model "
        "(workers 0 and 1: killed by SIGKILL)"
    )
    assert stage.list_kinds()[-1] == "run.failed"


def test_a_written_model_survives_the_death_of_its_writer(training) -> None:
    stage = training(1, step=98)
    finish(stage, 0)
    stage.receive(ModelWritten(worker=0))
    stage.end_worker(0)
    stage.report_step(99, 0)
    stage.report_step(100, 0)
    assert stage.list_messages(RunOver)[0].code == 0


def test_a_run_that_its_script_ends_is_finished(training) -> None:
    stage = training(2, step=5)
    for worker in (0, 1):
        stage.report_worker(worker, state="finished", step=5, ending="good enough")
    stage.receive(ModelWritten(worker=0))
    (over,) = stage.list_messages(RunOver)
    assert (over.code, over.why) == (0, "ended by its script after step 5: good enough")
    assert stage.list_kinds()[-1] == "run.finished"


def test_a_stop_before_the_first_generation_is_immediate(open_stage) -> None:
    stage = open_stage(start=2)
    stage.report_agent(stopping=True)
    assert stage.list_messages(RunOver)[0].code == 130


def test_a_report_after_the_end_gets_the_outcome_again(training) -> None:
    stage = training(1, step=100)
    finish(stage, 0)
    stage.receive(ModelWritten(worker=0))
    stage.actions.clear()
    stage.report_worker(0)
    stage.report_agent()
    assert stage.list_dismissals() == {0: 0}
    assert stage.list_messages(RunOver)[0].code == 0


# -- a new coordinator -----------------------------------------------------------------------------------


def test_a_new_coordinator_changes_nothing_in_a_settled_run(training) -> None:
    stage = training(3).start_successor()
    stage.wait(2)
    assert stage.actions == []
    assert stage.newest.number == 1
    stage.ask(AskResize(workers=2))
    assert (stage.newest.number, stage.newest.term, stage.newest.workers) == (2, 2, (0, 1))


def test_a_new_coordinator_listens_before_it_decides(training) -> None:
    stage = training(3).start_successor(wait=False)
    stage.report_worker(0)
    stage.receive(make_loss(0, 1), make_loss(2, 1))
    assert stage.proposals == []
    stage.report_worker(1)
    stage.report_worker(2)
    assert stage.newest.workers == (0, 2)


def test_a_new_coordinator_learns_of_the_death_of_a_member(training) -> None:
    stage = training(3)
    successor = stage.start_successor()
    successor.end_worker(1)
    assert (successor.newest.workers, successor.newest.term) == ((0, 2), 2)


def test_an_unfinished_change_is_repeated_under_a_new_number(training) -> None:
    stage = training(2)
    stage.ask(AskResize(workers=3))
    stage.start(2)
    pending = stage.newest
    stage.report_worker(0, newest=pending)
    successor = stage.start_successor()
    assert (successor.newest.number, successor.newest.workers, successor.newest.planned) == (3, (0, 1), False)
    successor.adopt()
    assert successor.newest.workers == (0, 1, 2)


def test_a_new_coordinator_waits_for_a_silent_member(training) -> None:
    stage = training(2).start_successor(wait=False)
    stage.report_worker(0)
    stage.wait(1.5)
    assert stage.proposals == []
    stage.report_worker(1)
    assert stage.proposals == []
    assert stage.ask(AskStatus()).state == "training"


def test_a_written_outcome_is_final(training) -> None:
    stage = training(1, step=100)
    finish(stage, 0)
    stage.receive(ModelWritten(worker=0))
    successor = stage.start_successor()
    assert successor.list_messages(RunOver)[0].code == 0
    assert successor.list_dismissals() == {0: 0}
    assert successor.events == []


def test_a_drain_survives_the_death_of_the_coordinator(training) -> None:
    stage = training(3)
    stage.target = 2
    successor = stage.start_successor(wait=False, draining=(0,))
    for worker in (0, 1, 2):
        successor.report_worker(worker)
    assert (successor.newest.workers, successor.newest.planned) == ((1, 2), True)


# -- late, repeated and reordered messages -------------------------------------------------------


def test_an_overtaken_report_is_ignored(training) -> None:
    stage = training(2)
    old = stage.reports[0]
    stage.report_worker(0, step=9)
    before = stage.roster
    stage.receive(old)
    assert stage.roster == before


def test_repeated_messages_change_nothing(training) -> None:
    stage = training(3)
    for _ in range(2):
        stage.receive(make_loss(0, 1), make_loss(2, 1))
        stage.report_agent()
        stage.report_worker(2)
    assert [generation.number for generation in stage.proposals] == [2]


def test_an_event_of_workers_is_written_once_per_key(training) -> None:
    stage = training(2)
    event = EventLine(time=1.0, kind="evaluation", detail={"accuracy": 0.9})
    for worker in (0, 1):
        stage.receive(WorkerEvent(worker=worker, key="evaluation 5", event=event))
    assert stage.list_kinds("evaluation") == ["evaluation"]
    successor = stage.start_successor()
    successor.receive(WorkerEvent(worker=0, key="evaluation 5", event=event))
    assert successor.events == []


def test_keys_that_all_workers_have_reported_are_forgotten(training) -> None:
    stage = training(2, step=5)
    for step in range(6, 60):
        stage.report_step(step, 0, 1)
        for worker in (0, 1):
            line = EventLine(time=1.0, kind="message", step=step)
            stage.receive(WorkerEvent(worker=worker, key=f"print-{step}-1", event=line))
    assert len(stage.list_kinds("message")) == 54
    assert len(stage.roster.events.keys) <= 2
    stage.receive(WorkerEvent(worker=1, key="print-7-1", event=EventLine(time=1.0, kind="message", step=7)))
    assert len(stage.list_kinds("message")) == 54


def test_a_script_that_prints_for_ever_does_not_fill_the_events(training, monkeypatch) -> None:
    monkeypatch.setattr(decide, "MOST_PRINTED", 5)
    stage = training(2, step=5)
    for place in range(1, 9):
        line = EventLine(time=1.0, kind="printed", why=f"line {place}", step=6)
        stage.receive(WorkerEvent(worker=0, key=f"printed-6-{place}", event=line))
    stage.receive(WorkerEvent(worker=0, key="message-6-1", event=EventLine(time=1.0, kind="message", step=6)))
    printed = [event.why for event in stage.events if event.kind == "printed"]
    assert printed == [*(f"line {place}" for place in range(1, 5)), decide.NO_MORE_PRINTED]
    assert len(stage.list_kinds("message")) == 1
    assert summarize_events(stage.events).printed == 5


def test_a_late_joiner_repeats_no_warning(training) -> None:
    """It finds a mistake in the script at its own first step."""
    stage = training(2, step=5)
    for step in range(6, 20):
        stage.report_step(step, 0, 1)
        for worker in (0, 1):
            message = EventLine(time=1.0, kind="message", step=step)
            stage.receive(WorkerEvent(worker=worker, key=f"print-{step}-1", event=message))
            if step in (6, 19):
                warning = EventLine(time=1.0, kind="warning", step=step)
                stage.receive(WorkerEvent(worker=worker, key="callback-Counter", event=warning))
    assert len(stage.list_kinds("warning")) == 1
    assert summarize_events(stage.events).keys["callback-Counter"] is None


def test_keys_that_one_worker_has_not_reported_are_remembered(training) -> None:
    stage = training(2, step=5)
    events = {step: EventLine(time=1.0, kind="message", step=step) for step in range(6, 60)}
    for step, event in events.items():
        stage.report_step(step, 0)
        stage.receive(WorkerEvent(worker=0, key=f"print-{step}-1", event=event))
    for step, event in events.items():
        stage.report_step(step, 1)
        stage.receive(WorkerEvent(worker=1, key=f"print-{step}-1", event=event))
    assert len(stage.list_kinds("message")) == 54


def test_each_wait_of_a_worker_for_its_data_is_recorded_once(training) -> None:
    stage = training(2)
    for awaiting in ((1,), (1,), (), (1,)):
        stage.report_agent(awaiting_data=awaiting)
    assert [event.who for event in stage.events if event.kind == "data.awaited"] == ["worker 1", "worker 1"]
    assert stage.proposals == []


# -- pauses and status -----------------------------------------------------------------------------------


def test_a_generation_is_recorded_after_all_have_reported_its_first_step(training) -> None:
    stage = training(2, step=5)
    stage.ask(AskResize(workers=3))
    stage.start(2)
    stage.adopt()
    shares = {0: 4, 1: 2, 2: 2}
    stage.report_step(6, 0, seconds=0.15, generation=2, shares=shares)
    stage.report_step(6, 2, seconds=0.9, generation=2, shares=shares, healthy=False)
    assert stage.list_kinds("generation.started") == []
    stage.report_step(6, 1, seconds=0.1, generation=2, shares=shares)
    (event,) = [event for event in stage.events if event.kind == "generation.started"]
    assert (event.workers, event.step, event.generation) == ((0, 1, 2), 6, 2)
    assert event.pause_ms == pytest.approx({0: 50.0, 1: 0.0})
    assert event.pause_steps == pytest.approx({0: 0.5, 1: 0.0})


def test_the_status_lists_every_process(training) -> None:
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


@pytest.mark.parametrize("before", [None, make_line(6).loss_hex, (0.5).hex()])
def test_a_step_made_again_must_have_the_loss_that_it_had(training, before) -> None:
    stage = training(1, step=5)
    lost = {} if before is None else {6: before}
    stage.roster = replace(stage.roster, progress=replace(stage.roster.progress, lost=lost))
    stage.report_step(6, 0)
    overs = stage.list_messages(RunOver)
    if before == (0.5).hex():
        (over,) = overs
        assert (over.code, over.why) == (
            1,
            f"step 6, made again after a resume, has the loss {1 / 6!r}, and had 0.5 before the resume",
        )
        assert "run.keep" in over.traceback
    else:
        assert not overs
