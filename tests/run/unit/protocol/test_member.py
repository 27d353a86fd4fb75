"""One worker's side of the protocol, event by event."""

import msgspec
import pytest

from elastane.run.nouns.membership import Generation, Member
from elastane.run.protocol import actions, events, messages
from elastane.run.protocol.layout import FRESH, Layout
from elastane.run.protocol.member_machine import MemberMachine
from elastane.run.protocol.messages import Leaf, PartialSum
from elastane.run.protocol.transitions.votes import conclude_round

LAYOUT = Layout(virtual_ranks=4, blocks=2, units=3, unit_bytes=(1, 1, 1))


def make_generation(number, *workers, term=1, planned=False, leaving=()):
    members = {worker: Member(worker, "127.0.0.1", 1000 + worker) for worker in (*workers, *leaving)}
    return Generation(
        number,
        term,
        tuple(members[worker] for worker in workers),
        planned=planned,
        leaving=tuple(members[worker] for worker in leaving),
    )


def list_kinds(answers):
    return [type(answer).__name__ for answer in answers]


def end_reads(member, answers):
    """End all reads of memory among these answers, and those that follow; return all answers."""
    every = []
    answers = list(answers)
    while answers:
        every.append(answer := answers.pop(0))
        match answer:
            case actions.Reduce(generation, blocks):
                answers = [*answers, *member.handle(events.Reduced(generation, blocks))]
            case actions.TakeSums(generation, peer, blocks):
                answers = [*answers, *member.handle(events.SumsTaken(generation, peer, blocks))]
            case actions.TakeValues(generation, peer, units):
                answers = [*answers, *member.handle(events.ValuesTaken(generation, peer, units))]
            case actions.LoadState(state=state):
                answers = [*answers, *member.handle(events.StateLoaded(state))]
    return every


def begin_alone():
    member = MemberMachine(0, LAYOUT)
    member.handle(events.RoundEntered("train", 4))
    return member, member.handle(events.GenerationProposed(make_generation(1, 0)))


def test_a_single_worker_commits_a_step_without_a_message():
    member, answers = begin_alone()
    assert answers == [actions.BeginRound(1, 1, 1, 1), actions.Compute((0, 1, 2, 3), 1)]
    for rank in range(4):
        assert member.handle(events.Computed(Leaf(rank, 0, loss=2.0, weight=1.0, samples=3))) == []
    answers = end_reads(
        member, member.handle(events.PartialSumsFinal(1, (0, 1), (PartialSum(((0, 4),), 0),)))
    )
    assert list_kinds(answers) == ["Reduce", "Measure"]
    (commit,) = member.handle(events.Measured(1, {0: (1.0,), 1: (2.0,)}, {}))
    assert commit.outcome.step == 1
    assert commit.outcome.samples == 12
    assert commit.outcome.shares == {0: ((0, 4),)}
    assert commit.held == {0, 1, 2}


def test_a_round_begins_after_the_last_one_is_applied():
    member, _ = begin_alone()
    for rank in range(4):
        member.handle(events.Computed(Leaf(rank, 0)))
    end_reads(member, member.handle(events.PartialSumsFinal(1, (0, 1), (PartialSum(((0, 4),), 0),))))
    member.handle(events.Measured(1, {}, {}))
    assert member.handle(events.RoundEntered("train", 4)) == []
    assert list_kinds(member.handle(events.Applied())) == ["ReleaseScript", "BeginRound", "Compute"]


def test_sums_of_an_older_assignment_are_not_final():
    member, _ = begin_alone()
    for rank in range(4):
        member.handle(events.Computed(Leaf(rank, 0)))
    assert member.handle(events.PartialSumsFinal(0, (0, 1), (PartialSum(((0, 4),), 0),))) == []


def test_proposals_with_an_older_number_or_term_are_ignored():
    member, _ = begin_alone()
    member.handle(events.GenerationProposed(make_generation(5, 0, term=3)))
    for late in (make_generation(4, 0, term=3), make_generation(5, 0, term=3), make_generation(6, 0, term=2)):
        assert member.handle(events.GenerationProposed(late)) == []
    assert member.works_in == 5


def test_a_planned_generation_waits_for_a_boundary():
    member, _ = begin_alone()
    assert member.handle(events.GenerationProposed(make_generation(2, 0, 1, planned=True))) == []
    assert member.works_in == 1


def test_a_worker_without_state_works_in_no_generation_until_it_begins():
    member = MemberMachine(1, LAYOUT)
    (answer,) = member.handle(events.GenerationProposed(make_generation(2, 0, 1, planned=True)))
    assert isinstance(answer.message, messages.Status)
    assert answer.message.committed == FRESH
    assert (member.works_in, member.complete) == (0, False)


def test_a_worker_that_is_left_out_leaves_once_and_ignores_later_proposals():
    member, _ = begin_alone()
    assert member.handle(events.GenerationProposed(make_generation(2, 1))) == [actions.LeaveTraining()]
    assert member.handle(events.GenerationProposed(make_generation(3, 1))) == []


def test_a_leaver_sends_its_status_and_leaves_after_all_statuses_have_arrived():
    member, _ = begin_alone()
    (answer,) = member.handle(events.GenerationProposed(make_generation(2, 1, leaving=(0,))))
    assert answer.peer == 1
    status = messages.Status(generation=2, worker=1, committed=0, held=((0, 3),))
    assert member.handle(events.Received(1, status)) == [actions.LeaveTraining()]


def test_a_worker_reports_every_lost_peer():
    member = MemberMachine(0, LAYOUT)
    # A newcomer that reaches no member has no generation yet.
    assert member.handle(events.ConnectionLost(7)) == [actions.ReportLostPeer(7)]
    member.handle(events.GenerationProposed(make_generation(3, 0, 1)))
    assert member.handle(events.ConnectionLost(1)) == [actions.ReportLostPeer(1)]


def begin_with_peer(kind="train", size=4, layout=LAYOUT):
    member = MemberMachine(0, layout)
    member.handle(events.RoundEntered(kind, size))
    member.handle(events.GenerationProposed(make_generation(1, 0, 1)))
    status = messages.Status(generation=1, worker=1, committed=FRESH, behind=((0, 3),))
    return member, member.handle(events.Received(1, status))


def test_a_round_fails_if_one_script_trains_and_another_has_left_the_loop():
    member, answers = begin_with_peer()
    assert "BeginRound" in list_kinds(answers)
    vote = messages.Vote(generation=1, round=1, leaves=(), kind="settle")
    (found,) = member.handle(events.Received(1, vote))
    assert found == actions.FailDisagreement("worker 0 is in a round to train, worker 1 in one to settle")
    # The machine fails once and never commits.
    assert member.handle(events.Received(1, vote)) == []


@pytest.mark.parametrize("ends_first", [True, False])
def test_a_round_fails_if_one_script_evaluates_and_another_has_ended(ends_first):
    member, _ = begin_with_peer("settle", 0)
    settle, evaluate = (
        messages.Vote(generation=1, round=number, leaves=(), kind=kind)
        for number, kind in ((1, "settle"), (2, "evaluate"))
    )
    member.handle(events.Received(1, settle))
    member.handle(events.Measured(1, {}, {}))
    assert member.committed == 1
    received, ended = events.Received(1, evaluate), events.ScriptEnded()
    first, second = (ended, received) if ends_first else (received, ended)
    assert member.handle(first) == []
    assert member.handle(second) == [
        actions.FailDisagreement("worker 1 is in a round to evaluate, and the script of worker 0 has ended")
    ]
    assert member.handle(received) == []


def test_a_step_with_different_replicated_values_is_not_committed():
    member, _ = begin_with_peer()
    vote = messages.Vote(
        generation=1, round=1, leaves=(Leaf(2, 1), Leaf(3, 1)), replicated={"run.keep": "theirs"}
    )
    assert member.handle(events.Received(1, vote)) == []
    for rank in (0, 1):
        member.handle(events.Computed(Leaf(rank, 0)))
    end_reads(
        member, member.handle(events.Received(1, messages.SumsReady(generation=1, round=1, blocks=(1,))))
    )
    part = PartialSum(((2, 4),), 0)
    member.handle(
        events.Received(1, messages.PartialSumsReady(generation=1, round=1, blocks=(0,), parts=(part,)))
    )
    answers = end_reads(
        member, member.handle(events.PartialSumsFinal(1, (0, 1), (PartialSum(((0, 2),), 0),)))
    )
    (measure,) = [answer for answer in answers if isinstance(answer, actions.Measure)]
    answers = member.handle(events.Measured(measure.request, {}, {}, replicated={"run.keep": "mine"}))
    assert list_kinds(answers) == ["Send", "FailDisagreement"]
    assert member.step == 0


def test_state_of_a_leaver_is_loaded_after_the_last_step_is_applied():
    sharded = Layout(virtual_ranks=4, blocks=2, units=3, unit_bytes=(1, 1, 1), copies=1)
    member, _ = begin_with_peer(layout=sharded)
    for rank in (0, 1):
        member.handle(events.Computed(Leaf(rank, 0)))
    part = PartialSum(((2, 4),), 0)
    member.handle(
        events.Received(1, messages.PartialSumsReady(generation=1, round=1, blocks=(0,), parts=(part,)))
    )
    answers = end_reads(
        member, member.handle(events.PartialSumsFinal(1, (0, 1), (PartialSum(((0, 2),), 0),)))
    )
    member.handle(events.Measured(answers[-1].request, {}, {}))
    vote = messages.Vote(generation=1, round=1, leaves=(Leaf(2, 1), Leaf(3, 1)))
    (commit,) = member.handle(events.Received(1, vote))
    assert commit.held == {0}

    member.handle(events.GenerationProposed(make_generation(2, 0, leaving=[1])))
    status = messages.Status(generation=2, worker=1, committed=1, outcome=commit.outcome, held=((1, 3),))
    answers = member.handle(events.Received(1, status))
    assert [(answer.message.values, answer.message.states) for answer in answers] == [((1,), ()), ((), (1,))]
    state = messages.State(generation=2, committed=1, states=(1,))
    # The application of the step frees the state of blocks that it does not hold, such as this one.
    assert member.handle(events.Received(1, state)) == []
    assert member.handle(events.Applied()) == [actions.LoadState(1, state)]


@pytest.mark.parametrize("released", [True, False])
def test_a_member_that_missed_a_step_ends_only_if_scripts_have_continued(released):
    member, _ = begin_with_peer()
    outcome = msgspec.structs.replace(messages.BEGINNING, round=1, step=1, complete=(0,))
    everything = ((0, LAYOUT.units),)
    status = messages.Status(
        generation=2, worker=1, committed=1, outcome=outcome, held=everything, released=released
    )
    member.handle(events.GenerationProposed(make_generation(2, 0, 1)))
    answers = list_kinds(member.handle(events.Received(1, status)))
    assert ("EndProcess" in answers) == released
    assert ("CommitRound" in answers) == (not released)


def test_a_script_continues_after_all_members_have_announced_every_value():
    layout = msgspec.structs.replace(LAYOUT, copies=1, units=3)
    member, _ = begin_with_peer(layout=layout)
    outcome = msgspec.structs.replace(messages.BEGINNING, round=1, step=1, complete=(0, 1))
    member.voted_for = 1
    conclude_round(member, outcome)
    member.actions.clear()
    answers = member.handle(events.Applied())
    assert list_kinds(answers) == ["Send"], "it publishes the blocks that it owns"
    assert isinstance(answers[0].message, messages.Published)
    published = messages.Published(generation=1, round=1, units=(1,))
    answers = end_reads(member, member.handle(events.Received(1, published)))
    assert list_kinds(answers) == ["TakeValues", "Send"]
    assert answers[1].message == messages.Current(generation=1, round=1)
    answers = member.handle(events.Received(1, messages.Current(generation=1, round=1)))
    assert list_kinds(answers) == ["ReleaseScript"]


def begin_reduction():
    """Begin a step with worker 1; worker 0 owns block 0 and reads its parts."""
    member, _ = begin_with_peer()
    for rank in (0, 1):
        member.handle(events.Computed(Leaf(rank, 0)))
    part = PartialSum(((2, 4),), 0)
    member.handle(
        events.Received(1, messages.PartialSumsReady(generation=1, round=1, blocks=(0,), parts=(part,)))
    )
    return member, member.handle(events.PartialSumsFinal(1, (0, 1), (PartialSum(((0, 2),), 0),)))


def find_statuses(answers):
    sent = [answer.message for answer in answers if isinstance(answer, actions.Send)]
    return [message for message in sent if isinstance(message, messages.Status)]


def test_a_sum_counts_and_is_announced_only_after_it_has_ended():
    member, answers = begin_reduction()
    assert list_kinds(answers) == ["Send", "Reduce"], "its parts of block 1, and the sum of block 0"
    taken = end_reads(
        member, member.handle(events.Received(1, messages.SumsReady(generation=1, round=1, blocks=(1,))))
    )
    assert list_kinds(taken) == ["TakeSums"], "the vote waits for block 0"
    (announced, measure) = member.handle(events.Reduced(1, (0,)))
    assert announced.message == messages.SumsReady(generation=1, round=1, blocks=(0,))
    assert isinstance(measure, actions.Measure)


def test_a_status_waits_for_reads_and_names_their_results():
    member, _ = begin_reduction()
    assert member.handle(events.GenerationProposed(make_generation(2, 0, 2))) == []
    assert member.handle(events.GenerationProposed(make_generation(3, 0, 2))) == []
    (status,) = find_statuses(member.handle(events.Reduced(1, (0,))))
    assert (status.generation, status.rooted) == (3, ((0, 1),))


def test_a_status_waits_for_merged_sums_which_are_void_then():
    layout = msgspec.structs.replace(LAYOUT, virtual_ranks=3, blocks=6, units=7, unit_bytes=(1,) * 7)
    member = MemberMachine(0, layout)
    members = tuple(Member(worker, "h", 1, node=node) for worker, node in ((0, ""), (1, ""), (2, "b")))
    member.handle(events.RoundEntered("train", 3))
    member.handle(events.GenerationProposed(Generation(1, 1, members, planned=False)))
    answers = []
    for worker in (1, 2):
        status = messages.Status(generation=1, worker=worker, committed=FRESH, behind=((0, 7),))
        answers = member.handle(events.Received(worker, status))
    (compute,) = [answer for answer in answers if isinstance(answer, actions.Compute)]
    blocks, own, theirs = tuple(range(6)), PartialSum(((0, 1),), 0), PartialSum(((1, 2),), 0)
    assert compute.virtual_ranks == (0,)
    ready = messages.PartialSumsReady(generation=1, round=1, blocks=blocks, parts=(theirs,))
    member.handle(events.PartialSumsFinal(1, blocks, (own,)))
    answers = member.handle(events.Received(1, ready))
    (merge,) = [answer for answer in answers if isinstance(answer, actions.MergeSums)]
    assert member.handle(events.GenerationProposed(make_generation(2, 0, 1))) == []
    answers = member.handle(events.SumsMerged(1, merge.blocks, (PartialSum(((0, 2),), 9),)))
    assert [type(answer.message) for answer in answers] == [messages.Status]


def test_state_that_is_loaded_late_counts_in_the_status():
    member = MemberMachine(1, msgspec.structs.replace(LAYOUT, copies=1))
    member.handle(events.GenerationProposed(make_generation(1, 0, 1)))
    outcome = msgspec.structs.replace(messages.BEGINNING, round=1, step=1)
    status = messages.Status(generation=1, worker=0, committed=1, outcome=outcome, held=((0, 3),))
    member.handle(events.Received(0, status))
    state = messages.State(generation=1, committed=1, values=(0, 1, 2))
    assert member.handle(events.Received(0, state)) == [actions.LoadState(0, state)]
    assert member.behind == {0, 1, 2}
    assert member.handle(events.GenerationProposed(make_generation(2, 1, 2))) == []
    (sent,) = find_statuses(member.handle(events.StateLoaded(state)))
    assert (sent.generation, sent.behind) == (2, ())


def test_reads_of_a_worker_that_the_others_went_on_without_are_void():
    member, _ = begin_reduction()
    assert member.handle(events.GenerationProposed(make_generation(2, 1))) == [actions.LeaveTraining()]
    assert member.handle(events.Reduced(1, (0,))) == []
    assert member.round.rooted == set()
