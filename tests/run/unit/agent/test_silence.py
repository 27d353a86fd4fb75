"""What an agent does that does not hear the coordinator."""

from dataclasses import replace

import pytest

from elastane.run.machines.claims.records import GenerationClaim, HeldSlot, OutcomeClaim, TermClaim
from elastane.run.machines.succession.silence import (
    LONGEST_FAILURE_S,
    LONGEST_SILENCE_S,
    EndAgent,
    Silence,
    SilentAgent,
    TakeCharge,
    Wait,
    answer_others,
    decide_in_silence,
    follow_leaver,
    record_answer,
    record_outage,
    record_takeover,
)
from elastane.run.machines.succession.takeover import CoordinatorHeard
from elastane.run.nouns.silence_limits import SilenceLimits

LIMITS = SilenceLimits()

NONCE = "0" * 32
TERM = TermClaim(number=1, claimant="a:1", nonce=NONCE, time=0.0)
TERM_2 = TermClaim(number=2, claimant="b:1", nonce=NONCE, time=0.0)
WITHOUT_B = GenerationClaim(number=4, term=1, members=(0, 1), nonce=NONCE)
END = OutcomeClaim(event="run.finished", term=1, code=0, why="all steps are made", nonce=NONCE)
DAY_S = 86_400.0


def hold(*records):
    return tuple(HeldSlot(slot, record) for slot, record in enumerate(records, start=1))


def read(*records, silence=None, sign=1, now_s=0.0):
    """Return a silence in which the claim list has answered with these records."""
    return record_answer(silence or Silence(), hold(*records), sign, 1, now_s)


def silent(silence, silent_s, **others):
    """Return the agent of node b, in a run whose coordinator was on another node that does not answer."""
    usual = {"answers": {"": None}, "workers": (100, 101), "total": 4} | others
    return SilentAgent("b", silence, silent_s, coordinator_node="", limits=LIMITS, **usual)


def test_a_node_that_follows_a_leaver_waits_for_the_others_only():
    takeover = follow_leaver("b", "", ["", "a", "b", "c"])
    assert (takeover.answering, takeover.silent_s, takeover.has_left) == (("a", "c"), 0.0, True)


@pytest.mark.parametrize("others", [{}, {"is_new": True}, {"has_failed": True}, {"workers": ()}])
def test_every_agent_waits_while_the_claim_list_is_away(others):
    away = record_outage(read(TERM))
    assert decide_in_silence(silent(away, DAY_S, **others), DAY_S) == Wait("the claim list is away")
    assert isinstance(decide_in_silence(silent(Silence(), DAY_S, **others), DAY_S), Wait)


def test_a_node_without_which_the_run_goes_on_waits_as_long_as_the_run_lives():
    renewed = read(TERM, WITHOUT_B, silence=read(TERM), sign=2, now_s=DAY_S)
    decision = decide_in_silence(silent(renewed, DAY_S), DAY_S + 1)
    assert decision == Wait("the run has gone on without this node")
    # Nothing is left of the run.
    assert isinstance(decide_in_silence(silent(renewed, DAY_S), DAY_S + 60), TakeCharge)


def test_only_generations_that_the_coordinator_has_not_named_leave_a_node_out():
    silence = read(TERM, WITHOUT_B)
    assert isinstance(decide_in_silence(silent(silence, 10.0, claimed=3), 10.0), Wait)
    # Its workers have joined the run by a planned generation after that one.
    assert isinstance(decide_in_silence(silent(silence, 10.0, claimed=4), 10.0), TakeCharge)
    # That one was of an earlier attempt.
    assert isinstance(decide_in_silence(silent(silence, 10.0, first_term=2), 10.0), TakeCharge)


def test_a_coordinator_that_waits_for_the_claim_list_has_time_when_the_list_is_back():
    back = read(TERM, silence=record_outage(Silence()), now_s=DAY_S)
    agent = replace(silent(back, DAY_S, workers=(0, 1), total=2), node="")
    assert isinstance(decide_in_silence(agent, DAY_S + LIMITS.limit_s - 0.1), Wait)
    assert isinstance(decide_in_silence(agent, DAY_S + LIMITS.limit_s), TakeCharge)


def test_a_coordinator_that_has_just_taken_charge_has_time():
    agent = replace(silent(read(TERM), 30.0, workers=(0, 1), total=2), node="")
    claimed = read(TERM, TERM_2, silence=agent.silence, now_s=29.0)
    assert isinstance(decide_in_silence(agent, 30.0), TakeCharge)
    for silence in (claimed, record_takeover(agent.silence, 29.0)):
        assert isinstance(decide_in_silence(replace(agent, silence=silence), 30.0), Wait)
        assert isinstance(decide_in_silence(replace(agent, silence=silence), 32.0), TakeCharge)


def test_a_sign_counts_as_renewed_once_it_was_seen_to_change():
    """The first sign that an agent reads may be the last one before the coordinator's death."""
    first = read(TERM, now_s=2.0)
    assert isinstance(decide_in_silence(silent(first, 4.0), 4.0), TakeCharge)
    renewed = read(TERM, silence=first, sign=2, now_s=3.5)
    assert isinstance(decide_in_silence(silent(renewed, 4.0), 4.0), Wait)
    assert isinstance(decide_in_silence(silent(renewed, 7.0), 7.0), TakeCharge)


def test_a_node_that_takes_charge_knows_which_others_answered():
    answers = {"": None, "c": CoordinatorHeard(9.0), "a": CoordinatorHeard(9.0)}
    decision = decide_in_silence(silent(read(TERM), 20.0, answers=answers, workers=(0, 1, 2)), 20.0)
    assert isinstance(decision, TakeCharge)
    assert decision.answering == ("a", "c")


def test_a_node_without_an_order_ends_when_no_coordinator_answers():
    def decide(silence, now_s):
        return decide_in_silence(silent(silence, now_s, is_new=True, workers=()), now_s)

    assert isinstance(decide(read(TERM), LONGEST_SILENCE_S), Wait)
    decision = decide(read(TERM), LONGEST_SILENCE_S + 1)
    assert isinstance(decision, EndAgent)
    assert (decision.over.code, decision.is_outcome) == (1, False)
    # The time in which no coordinator could take charge does not count.
    back = read(TERM, silence=record_outage(read(TERM)), now_s=50.0)
    assert isinstance(decide(back, LONGEST_SILENCE_S + 1), Wait)
    assert isinstance(decide(back, 50 + LONGEST_SILENCE_S + 1), EndAgent)


def test_an_agent_ends_with_the_outcome_that_the_claim_list_shows():
    over = read(TERM, END, silence=read(TERM), now_s=100.0)
    agent = silent(over, DAY_S, answers={"c": CoordinatorHeard(0.1)})
    # A coordinator may still say so itself.
    assert isinstance(decide_in_silence(agent, 100 + LONGEST_SILENCE_S), Wait)
    decision = decide_in_silence(agent, 100 + LONGEST_SILENCE_S + 1)
    assert isinstance(decision, EndAgent)
    assert (decision.over.code, decision.over.why, decision.is_outcome) == (0, END.why, True)


def test_the_outcome_of_an_earlier_attempt_ends_no_agent():
    before = record_answer(Silence(), hold(TERM, END, TERM_2), 1, 2, 0.0)
    assert not isinstance(decide_in_silence(silent(before, DAY_S), DAY_S), EndAgent)


def test_an_agent_whose_coordinators_keep_dying_rests_and_ends_after_an_hour():
    agent = silent(read(TERM), LONGEST_FAILURE_S, rests=True, has_failed=True)
    assert decide_in_silence(agent, LONGEST_FAILURE_S) == Wait("coordinators keep dying on this node")
    assert isinstance(decide_in_silence(replace(agent, rests=False), LONGEST_FAILURE_S), TakeCharge)
    decision = decide_in_silence(replace(agent, silent_s=LONGEST_FAILURE_S + 1), LONGEST_FAILURE_S + 1)
    assert isinstance(decision, EndAgent)
    assert not decision.is_outcome


def test_a_node_leaves_time_to_another_one_that_is_about_to_claim_its_term():
    limit_s = LIMITS.limit_s
    taking = record_takeover(read(TERM), 10.0)
    answer = answer_others(taking, 10.0, 2, 10.2)
    assert answer == CoordinatorHeard(pytest.approx(0.2), 2)
    other = silent(read(TERM), 10.0, answers={"a": answer, "": None})
    assert "node a hears a coordinator" in decide_in_silence(other, 10.2).why
    # It did not take charge.
    late = silent(read(TERM), 20.0, answers={"a": answer_others(taking, 20.0, 2, 10.1 + limit_s + 1.0)})
    assert isinstance(decide_in_silence(late, 10.1 + limit_s + 1.0), TakeCharge)
    assert answer_others(Silence(), 1.0, 2, 10.0).heard_s == 1.0
