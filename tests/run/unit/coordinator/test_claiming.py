"""Unplanned generations and the end of a run on several machines are announced once they are claimed."""

from dataclasses import replace

import msgspec
import pytest

from elastane.common.exit_codes import ExitCode
from elastane.run.coordinator.actions import ClaimHeld, ClaimSlot, ClaimUnanswered
from elastane.run.coordinator.claiming import CLAIM_AGAIN_S, find_unheard_generation
from elastane.run.coordinator.roster import Takeover, create_roster
from elastane.run.machines.claims.records import GenerationClaim, OutcomeClaim, make_nonce
from elastane.run.nouns.control import Dismiss, KillWorker, Propose, RunOver, WorkerExit, WorkerFailed
from elastane.run.nouns.silence_limits import LISTEN_S, SilenceLimits
from tests.run.unit.coordinator.conftest import PINNED, claim_all, hear, list_claims, make_line

LIMITS = SilenceLimits()

STOPPED = ExitCode.STOPPED_BY_USER


def die(stage, worker: int, *survivors: int) -> None:
    stage.end_worker(worker)
    stage.exits = [end for end in stage.exits if end.worker == worker]
    hear(stage, *survivors)


def test_the_first_generation_is_a_claim_too(spread) -> None:
    stage = spread(0, 1, 100)
    assert stage.newest.workers == (0, 1, 100)
    assert not stage.newest.planned


def test_a_generation_after_a_death_is_announced_once_it_is_claimed(spread) -> None:
    stage = spread(0, 1, 100)
    die(stage, 1, 0, 100)
    assert list_claims(stage) == [(0, 100)]
    assert stage.list_messages(Propose) == []
    claim_all(stage)
    assert {proposal.generation.workers for proposal in stage.list_messages(Propose)} == {(0, 100)}


def test_a_second_death_follows_with_a_claim_of_its_own(spread) -> None:
    stage = spread(0, 1, 100, 101)
    die(stage, 1, 0, 100, 101)
    die(stage, 101, 0, 100)
    assert list_claims(stage) == [(0, 100, 101)]
    claim_all(stage)
    assert stage.newest.workers == (0, 100, 101)
    assert list_claims(stage) == [(0, 100, 101), (0, 100)]
    claim_all(stage)
    assert stage.newest.workers == (0, 100)


def test_an_unanswered_claim_is_repeated_and_recorded_once(spread) -> None:
    stage = spread(0, 1, 100)
    die(stage, 1, 0, 100)
    for _ in range(3):
        stage.receive(ClaimUnanswered(stage.roster.claiming.pending, "the claim list does not answer"))
        stage.now += CLAIM_AGAIN_S
        hear(stage, 0, 100)
    assert list_claims(stage) == [(0, 100)] * 4
    (event,) = [event for event in stage.events if event.kind == "claim.waiting"]
    assert "steps go on" in event.why
    claim_all(stage)
    assert stage.newest.workers == (0, 100)


def test_an_answer_to_another_claim_changes_nothing(spread) -> None:
    stage = spread(0, 1, 100)
    die(stage, 1, 0, 100)
    pending = stage.roster.claiming.pending
    another = msgspec.structs.replace(pending, number=pending.number + 1)
    stage.receive(ClaimHeld(another), ClaimUnanswered(another, "late"))
    assert stage.newest.workers == (0, 1, 100)
    assert stage.roster.claiming.pending is not None


def test_a_worker_on_a_lost_node_is_killed_only_after_the_claim(spread) -> None:
    stage = spread(0, 1, 100)
    for _ in range(7):
        stage.now += 0.5
        hear(stage, 0, 1, nodes=("",))
    assert stage.list_kinds("node.lost") == ["node.lost"]
    hear(stage, 0, 1, 100)
    assert stage.list_messages(KillWorker) == []
    claim_all(stage)
    assert {kill.worker for kill in stage.list_messages(KillWorker)} == {100}


def test_a_coordinator_that_hears_the_smaller_part_waits_for_the_larger_one(spread) -> None:
    stage = spread(0, 100, 101)
    silent_since = stage.now
    while stage.now < silent_since + LIMITS.limit_s + LIMITS.minority_s - 0.5:
        stage.now += 0.25
        hear(stage, 0, nodes=("",))
        stage.report_worker(0)
        assert list_claims(stage) == []
    stage.now += 0.5
    hear(stage, 0, nodes=("",))
    assert list_claims(stage) == [(0,)]


@pytest.mark.parametrize("follows", [True, False])
def test_a_coordinator_that_was_cut_off_does_not_count_that_as_the_silence_of_others(spread, follows) -> None:
    stage = spread(0, 100, 101)
    for _ in range(8):
        stage.now += 0.5
        hear(stage, 0, nodes=("",))
        stage.report_worker(0)
    # The network heals: most workers are heard again, the agent of their machine is not yet.
    stage.report_worker(100)
    assert stage.list_kinds("node.lost") == []
    stage.now += LIMITS.quiet_s - 0.1
    if follows:
        hear(stage, 0, 100, 101)
    for worker in (0, 100, 101):
        stage.report_worker(worker)
    stage.now += 0.2
    hear(stage, 0, nodes=("",))
    assert stage.list_kinds("node.lost") == ([] if follows else ["node.lost"])


def test_half_of_the_run_does_not_wait(spread) -> None:
    stage = spread(0, 100)
    for _ in range(7):
        stage.now += 0.5
        hear(stage, 0, nodes=("",))
    assert list_claims(stage) == [(0,)]


# -- generations that may be at work unheard ----------------------------------------------------------------


@pytest.mark.parametrize(
    ("generations", "present", "ended", "unheard"),
    [
        ([], {0}, set(), None),
        ([(0, 1)], {0}, set(), None),
        ([(2, 1)], {0}, set(), (1, 2)),
        ([(2, 1)], {0}, {1}, (2,)),
        ([(2, 1)], {0}, {1, 2}, None),
        ([(0, 1), (3, 4)], {0}, {3}, (4,)),
        ([()], {0}, set(), None),
    ],
)
def test_a_generation_is_unheard_if_it_needs_no_present_worker(generations, present, ended, unheard) -> None:
    assert find_unheard_generation(generations, present, ended) == unheard


@pytest.fixture
def take_over(spread):
    """Return a function that makes a coordinator that took over from the first node."""

    def begin(
        claimed: tuple[int, ...],
        *,
        term: int = 1,
        silent_s: float = LIMITS.limit_s,
        answering=(),
        last=None,
        exits=(),
        listens_s: float = LISTEN_S,
    ):
        stage = spread(0, 100, 101)
        claim = GenerationClaim(number=2, term=term, members=claimed, nonce=make_nonce())
        roster = create_roster(
            stage.roster.spec,
            2,
            stage.now,
            takeover=Takeover("", silent_s, frozenset(answering)),
            claimed=(claim,),
            pinned=PINNED,
            events=stage.written,
            last=last,
        )
        successor = replace(stage, roster=roster, actions=[], exits=list(exits))
        hear(successor, 100, 101, nodes=("b",))
        for worker in (100, 101):
            successor.report_worker(worker, node="b")
        successor.wait(listens_s)
        return successor

    return begin


def test_the_node_of_the_earlier_term_is_lost_once_all_others_have_reported(take_over) -> None:
    stage = take_over((0, 100, 101), listens_s=0.0)
    (lost,) = [event for event in stage.events if event.kind == "node.lost"]
    assert (lost.who, lost.workers) == ("the first node", (0,))
    assert list_claims(stage) == [(100, 101)]
    assert stage.roster.claiming.pending.number == 3


def test_a_node_whose_agent_answered_has_time_to_report(take_over) -> None:
    """Only its coordinator hung."""
    stage = take_over((0, 100, 101), answering=("",), listens_s=0.9 * LISTEN_S)
    assert stage.roster.term.listening
    hear(stage, 0, nodes=("",))
    stage.report_worker(0)
    assert not stage.roster.term.listening
    assert stage.list_kinds("node.lost") == []


def test_a_node_that_has_just_taken_charge_too_is_not_lost_at_once(take_over) -> None:
    stage = take_over((0, 100, 101), silent_s=0.0)
    assert stage.list_kinds("node.lost") == []
    for _ in range(6):
        stage.wait(LIMITS.limit_s / 6)
        hear(stage, 100, 101, nodes=("b",))
    assert stage.list_kinds("node.lost") == ["node.lost"]


def test_survivors_do_not_go_on_beside_a_claimed_generation_without_them(take_over) -> None:
    stage = take_over((0,))
    assert list_claims(stage) == []
    (event,) = [event for event in stage.events if event.kind == "generation.unheard"]
    assert event.workers == (0,)
    stage.now += LIMITS.unheard_s
    hear(stage, 100, 101, nodes=("b",))
    claim_all(stage)
    assert stage.roster.over.lost
    assert "nothing was heard of them" in stage.roster.over.why


def test_survivors_do_not_go_on_from_a_state_that_is_older_than_the_ledger(take_over) -> None:
    # The last step was made in a planned generation, of which no claim tells.
    stage = take_over((0, 100, 101), last=make_line(9, 4, {150: 8}))
    assert list_claims(stage) == []
    (event,) = [event for event in stage.events if event.kind == "generation.unheard"]
    assert event.workers == (150,)
    stage.now += LIMITS.unheard_s
    hear(stage, 100, 101, nodes=("b",))
    claim_all(stage)
    assert stage.roster.over.lost
    assert "worker 150 had it" in stage.roster.over.why


def test_the_run_fails_at_once_if_the_workers_of_its_last_step_have_ended(take_over) -> None:
    ended = [WorkerExit(worker=150, pid=250, code=-9)]
    stage = take_over((0, 100, 101), last=make_line(9, 4, {150: 8}), exits=ended)
    claim_all(stage)
    assert stage.roster.over.lost
    assert stage.roster.over.why.endswith("it ended with worker 150")


def test_survivors_that_took_part_in_the_last_step_go_on(take_over) -> None:
    stage = take_over((0, 100, 101), last=make_line(9, 1, {0: 8}))
    assert list_claims(stage) == [(100, 101)]


def test_a_claim_of_an_earlier_attempt_does_not_count(spread) -> None:
    stage = spread(0, 100)
    claims = [GenerationClaim(number=7, term=term, members=(5,), nonce=make_nonce()) for term in (1, 3)]
    roster = create_roster(stage.roster.spec, 3, 0.0, claimed=claims, first_term=2)
    assert roster.claiming.earlier == tuple(claims[1:])
    assert roster.known.highest == 7


# -- the end of the run -------------------------------------------------------------------------------------


def make_outcome(**changes) -> OutcomeClaim:
    return msgspec.structs.replace(
        OutcomeClaim(
            event="run.stopped", term=1, code=STOPPED, why="enough", cause="a user", nonce=make_nonce()
        ),
        **changes,
    )


def fail(stage, worker: int) -> None:
    stage.receive(WorkerFailed(worker=worker, traceback="ValueError: no", fatal=True))


def test_a_failure_ends_the_run_once_that_is_claimed(spread) -> None:
    stage = spread(0, 1, 100)
    fail(stage, 1)
    fail(stage, 100)
    (ending,) = [action.subject for action in stage.actions if isinstance(action, ClaimSlot)]
    assert ending.over.why == "worker 1 failed: ValueError: no"
    assert stage.list_messages(RunOver) == stage.list_messages(Dismiss) == []
    assert [event for event in stage.events if event.kind == "run.failed"] == []
    claim_all(stage)
    assert {over.why for over in stage.list_messages(RunOver)} == {ending.over.why}
    assert len(stage.list_messages(Dismiss)) == 1


def test_while_the_end_is_claimed_no_generation_is_proposed(spread) -> None:
    stage = spread(0, 1, 100)
    fail(stage, 1)
    die(stage, 100, 0, 1)
    stage.receive(ClaimUnanswered(stage.roster.claiming.pending, "the claim list does not answer"))
    stage.wait(CLAIM_AGAIN_S)
    claims = [action.subject for action in stage.actions if isinstance(action, ClaimSlot)]
    assert len(claims) == 2
    assert {claim.over.code for claim in claims} == {1}
    (event,) = [event for event in stage.events if event.kind == "claim.waiting"]
    assert "the end of the run" in event.why


def test_a_later_term_ends_the_run_as_an_earlier_one_has_claimed(spread) -> None:
    stage = spread(0, 1, 100)
    roster = create_roster(stage.roster.spec, 2, stage.now, takeover=Takeover(""), outcome=make_outcome())
    later = replace(stage, roster=roster, actions=[], written=[])
    hear(later, 0, 1, 100)
    later.wait(LISTEN_S)
    later.wait(1.0)
    assert {over.code for over in later.list_messages(RunOver)} == {STOPPED}
    (event,) = [event for event in later.events if event.kind == "run.stopped"]
    assert (event.who, event.why) == ("a user", "enough")
    assert not [action for action in later.actions if isinstance(action, ClaimSlot)]
