"""A coordinator that hears nothing of others asks itself whether it is cut off."""

from dataclasses import replace

import msgspec
import pytest

from elastane.run.coordinator.actions import ClaimsChecked, Disconnected
from elastane.run.coordinator.hearing import awaits_signs, find_vote
from elastane.run.coordinator.reachability import REPORTS_S
from elastane.run.coordinator.roster import Nodes, Takeover
from elastane.run.nouns.control import PeerLost
from elastane.run.nouns.silence_limits import SilenceLimits
from tests.run.unit.coordinator.conftest import hear, list_claims

LIMITS = SilenceLimits()

BEAT_S = 0.5


def hear_only(stage, seconds: float, *workers: int, nodes=("",)) -> None:
    """Let time pass in which these workers and the agents of these nodes report."""
    end = stage.now + seconds
    while stage.now < end - 1e-9:
        stage.now += min(BEAT_S, end - stage.now)
        hear(stage, *workers, nodes=nodes)
        for worker in workers:
            stage.report_worker(worker)


# -- the claim list is away ---------------------------------------------------------------------------------


@pytest.fixture
def outage(spread):
    """A run whose coordinator hears neither the other node nor the claim list, for a long time."""
    stage = spread(0, 1, 100)
    stage.receive(ClaimsChecked(False))
    hear_only(stage, 4 * LIMITS.limit_s, 0, 1)
    assert stage.list_kinds("node.lost") == []
    return stage


def test_an_outage_of_the_claim_list_is_recorded_once_with_the_silent_node(outage) -> None:
    (event,) = [event for event in outage.events if event.kind == "claim.waiting"]
    assert event.why.startswith("nothing is heard of node b, and the claim list does not answer")


def test_a_node_is_not_lost_if_it_is_heard_soon_after_the_claim_list(outage) -> None:
    outage.receive(ClaimsChecked(True))
    hear_only(outage, LIMITS.quiet_s - BEAT_S - 0.1, 0, 1)
    hear_only(outage, LIMITS.limit_s, 0, 1, 100, nodes=("", "b"))
    assert outage.list_kinds("node.lost") == []
    assert list_claims(outage) == []


def test_a_node_is_lost_if_it_is_not_heard_when_the_claim_list_is_back(outage) -> None:
    outage.receive(ClaimsChecked(True))
    hear_only(outage, LIMITS.quiet_s, 0, 1)
    assert outage.list_kinds("node.lost") == ["node.lost"]
    assert list_claims(outage) == [(0, 1)]


def test_the_smaller_part_leaves_the_larger_one_time_to_find_the_claim_list(spread) -> None:
    stage = spread(0, 100, 101)
    stage.receive(ClaimsChecked(False))
    hear_only(stage, 20.0, 0)
    stage.receive(ClaimsChecked(True))
    hear_only(stage, LIMITS.limit_s + LIMITS.minority_s - 0.1, 0)
    assert list_claims(stage) == []
    hear_only(stage, 0.1, 0)
    assert list_claims(stage) == [(0,)]


def test_broken_connections_decide_nothing_while_the_claim_list_is_away(spread) -> None:
    stage = spread(0, 1, 100)
    stage.receive(ClaimsChecked(False))
    for one, other in ((0, 100), (1, 100), (100, 0), (100, 1)):
        stage.receive(PeerLost(worker=one, peer=other))
    hear_only(stage, 5.0, 0, 1, 100, nodes=("", "b"))
    assert list_claims(stage) == []
    (event,) = [event for event in stage.events if event.kind == "claim.waiting"]
    assert event.why.startswith("workers have lost connections to each other")
    stage.receive(ClaimsChecked(True))
    hear_only(stage, LIMITS.quiet_s, 0, 1, 100, nodes=("", "b"))
    assert list_claims(stage) == [(0, 1)]


def test_each_outage_is_recorded(outage) -> None:
    outage.receive(ClaimsChecked(True))
    hear_only(outage, LIMITS.limit_s, 0, 1, 100, nodes=("", "b"))
    outage.receive(ClaimsChecked(False))
    hear_only(outage, 2 * LIMITS.limit_s, 0, 1)
    assert outage.list_kinds("claim.waiting") == ["claim.waiting"] * 2


# -- the smaller part of the run ----------------------------------------------------------------------------


def test_the_smaller_part_waits_from_when_most_are_silent(spread) -> None:
    """One worker has been silent for long; it alone is no reason to wait."""
    stage = spread(0, 1, 100, 101)
    began, now = stage.now, stage.now + LIMITS.limit_s + LIMITS.minority_s
    heard = {0: now, 1: began, 100: now - 1.5, 101: now - 1.5}
    roster = replace(stage.roster, heard=heard, nodes=Nodes())
    assert awaits_signs(roster, now)
    assert not awaits_signs(replace(roster, heard={**heard, 100: began, 101: began}), now)


def test_a_worker_does_not_go_before_it_or_its_agent_was_heard_since_it_was_lost(spread) -> None:
    """Worker 0 is cut off from both others, but its report of one of them was lost."""
    stage = spread(0, 100, 101)
    hear_only(stage, BEAT_S, 0, 100, 101, nodes=("", "b"))
    stage.receive(PeerLost(worker=0, peer=100))
    hear_only(stage, REPORTS_S, 0)
    assert list_claims(stage) == []
    stage.receive(PeerLost(worker=0, peer=101))
    hear_only(stage, REPORTS_S, 0)
    assert list_claims(stage) == [(100, 101)]


def test_a_report_on_its_way_when_the_network_broke_does_not_make_the_smaller_part_go_on(spread) -> None:
    """Worker 0 is cut off from both others; a last report of one arrives, so the other is quiet first."""
    stage = spread(0, 100, 101)
    hear_only(stage, BEAT_S, 0, 100, 101, nodes=("", "b"))
    stage.receive(PeerLost(worker=0, peer=100), PeerLost(worker=0, peer=101))
    stage.now += LIMITS.quiet_s - 2 * BEAT_S
    stage.report_worker(100)
    hear_only(stage, LIMITS.limit_s, 0)
    assert list_claims(stage) == []


def test_a_worker_whose_agent_says_that_it_lives_may_connect_again(spread) -> None:
    stage = spread(0, 1, 100)
    stage.receive(PeerLost(worker=0, peer=100), PeerLost(worker=1, peer=100), Disconnected(100))
    # Without its agent it would go at once.
    assert list_claims(stage) == [(0, 1)]
    stage = spread(0, 1, 100)
    hear_only(stage, BEAT_S, 0, 1, 100, nodes=("", "b"))
    stage.receive(Disconnected(100), PeerLost(worker=0, peer=100))
    stage.now += 0.01
    hear(stage, 0, 1, 100)
    hear_only(stage, BEAT_S, 0, 1)
    assert list_claims(stage) == []
    hear_only(stage, LIMITS.quiet_s, 0, 1)
    assert list_claims(stage) == [(0, 1)]


@pytest.mark.parametrize(("answering", "waits"), [((), False), (("b",), True)])
def test_a_node_that_answered_before_the_term_was_not_silent_then(spread, answering, waits) -> None:
    stage = spread(0, 100, 101)
    takeover = Takeover("c", LIMITS.limit_s + LIMITS.minority_s, frozenset(answering))
    members = tuple(
        msgspec.structs.replace(member, node="b" if member.worker >= 100 else "")
        for member in stage.newest.members
    )
    newest = msgspec.structs.replace(stage.newest, members=members)
    term = replace(stage.roster.term, number=2, began=stage.now, takeover=takeover)
    alone = {0: stage.roster.reports[0]}
    roster = replace(
        stage.roster, term=term, newest=newest, heard={0: stage.now}, reports=alone, nodes=Nodes()
    )
    assert awaits_signs(roster, stage.now) == waits


def test_a_step_is_a_sign_although_the_report_of_its_worker_names_it_first(spread) -> None:
    stage = spread(0, 100)
    for step in range(6, 20):
        stage.now += BEAT_S
        hear(stage, 0, nodes=("",))
        stage.report_worker(0, step=step)
        stage.report_step(step, 0, shares={0: 4, 100: 4})
    assert stage.list_kinds("node.lost") == []
    stage.now += LIMITS.limit_s
    hear(stage, 0, nodes=("",))
    assert stage.list_kinds("node.lost") == ["node.lost"]


def test_only_a_step_long_after_the_last_report_shows_that_a_worker_is_at_work(spread) -> None:
    """The last steps before a death are often reported after the last report of the dead worker."""
    stage = spread(0, 100)
    heard_s = stage.now
    for voted_s, counts in ((heard_s + LIMITS.quiet_s - 0.1, False), (heard_s + LIMITS.quiet_s, True)):
        progress = replace(stage.roster.progress, committed={100: voted_s})
        roster = replace(stage.roster, progress=progress, heard={100: heard_s})
        assert (find_vote(roster, 100) == voted_s) == counts
