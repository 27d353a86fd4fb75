"""Broken connections between living workers cost no more workers than they must."""

from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from elastane.run.coordinator.reachability import REPORTS_S, Evidence, choose_excluded, is_certain
from elastane.run.nouns.control import AskResize, KillWorker, PeerLost
from elastane.run.nouns.silence_limits import SilenceLimits
from tests.run.unit.coordinator.test_deaths import lose

LIMITS = SilenceLimits()


def make_evidence(members: int, *pairs: tuple[int, int], **facts: set[int]) -> Evidence:
    """Return evidence in which both workers of each pair report their broken connection."""
    everyone = frozenset(range(members))
    reports = frozenset({*pairs, *((peer, worker) for worker, peer in pairs)})
    return Evidence(reports, everyone, **{"holders": everyone} | facts)


def part(*sides: tuple[int, ...]) -> list[tuple[int, int]]:
    return [(a, b) for one, other in combinations(sides, 2) for a in one for b in other]


@pytest.mark.parametrize(
    ("sides", "excluded"),
    [
        (((0, 1), (2, 3)), {2, 3}),
        (((0,), (1, 2, 3)), {0}),
        (((0, 3), (1, 2, 4)), {0, 3}),
        (((0, 1), (2, 3, 4), (5,)), {0, 1, 5}),
    ],
)
def test_the_largest_part_of_a_network_goes_on(sides, excluded) -> None:
    members = sum(map(len, sides))
    assert choose_excluded(make_evidence(members, *part(*sides))) == excluded


def test_a_newcomer_that_reaches_nobody_costs_no_member() -> None:
    evidence = make_evidence(4, (3, 0), (3, 1), (3, 2), newcomers={3}, holders={0, 1, 2})
    assert choose_excluded(evidence) == {3}


def test_two_newcomers_that_do_not_reach_one_member_go() -> None:
    assert choose_excluded(make_evidence(4, (2, 0), (3, 0), newcomers={2, 3})) == {2, 3}


def test_a_newcomer_that_also_lost_a_silent_member_stays() -> None:
    members = frozenset({0, 1, 2})
    evidence = Evidence(frozenset({(0, 1), (2, 1)}), members, newcomers={2})
    assert choose_excluded(evidence) == {1}


def test_of_two_workers_the_silent_one_goes() -> None:
    members = frozenset({0, 1})
    assert choose_excluded(Evidence(frozenset({(0, 1)}), members)) == {1}
    assert choose_excluded(Evidence(frozenset({(1, 0)}), members)) == {0}


def test_of_two_workers_the_quiet_one_goes() -> None:
    assert choose_excluded(make_evidence(2, (0, 1), quiet={0})) == {0}


def test_a_small_part_goes_on_if_only_it_holds_the_state() -> None:
    sides = ((0,), (1, 2, 3))
    assert choose_excluded(make_evidence(4, *part(*sides), holders={0})) == {1, 2, 3}


def test_quiet_workers_go_even_if_they_are_more() -> None:
    # Two workers have lost power at once, and the third has lost both.
    evidence = Evidence(frozenset({(2, 0), (2, 1)}), frozenset({0, 1, 2}), quiet=frozenset({0, 1}))
    assert choose_excluded(evidence) == {0, 1}


def test_a_quiet_worker_that_has_reported_stays_without_those_that_never_have() -> None:
    # The reports of worker 3 are late; the machine of workers 0 to 2 was lost before this coordinator began.
    lost = frozenset({0, 1, 2})
    reports = frozenset((worker, peer) for worker in (3, 4) for peer in lost)
    assert choose_excluded(Evidence(reports, frozenset(range(5)), quiet=lost | {3})) == lost


def test_an_isolated_worker_goes_although_it_reports_first() -> None:
    reports = frozenset({(0, 1), (0, 2), (0, 3)})
    assert choose_excluded(Evidence(reports, frozenset(range(4)))) == {0}


def test_a_quiet_holder_of_state_is_not_spared() -> None:
    assert choose_excluded(make_evidence(2, (0, 1), holders={0}, quiet={0})) == {0}


def test_a_walled_newcomer_does_not_make_a_member_suspect() -> None:
    reports = frozenset({(4, 0), (0, 3)})
    evidence = Evidence(reports, frozenset(range(5)), newcomers=frozenset({4}))
    assert choose_excluded(evidence) == {3, 4}


PAIRS = list(combinations(range(5), 2))


@given(st.sets(st.sampled_from(PAIRS)), st.sets(st.sampled_from(range(5)), max_size=4))
def test_no_broken_connection_remains_and_no_worker_goes_without_one(broken, newcomers) -> None:
    evidence = make_evidence(5, *broken, newcomers=newcomers)
    excluded = choose_excluded(evidence)
    assert all(excluded.intersection(pair) for pair in broken)
    for worker in excluded:
        others = excluded - {worker}
        assert any(worker in pair and others.isdisjoint(pair) for pair in broken)
    for member in excluded - newcomers:
        # A member goes only for another member.
        assert any(member in pair and newcomers.isdisjoint(pair) for pair in broken)


def test_the_choice_is_certain_once_all_that_stay_have_reported() -> None:
    members = frozenset({0, 1, 2})
    assert is_certain(Evidence(frozenset({(0, 1), (2, 1)}), members), {1})
    assert not is_certain(Evidence(frozenset({(0, 1)}), members), {1})


# -- in the coordinator ------------------------------------------------------------------------------------


def list_killed(stage) -> list[int]:
    return [kill.worker for kill in stage.list_messages(KillWorker)]


def test_the_coordinator_waits_for_the_reports_of_all_parts(training) -> None:
    stage = training(4)
    stage.receive(PeerLost(worker=2, peer=1), PeerLost(worker=1, peer=2))
    assert list_killed(stage) == []
    for one, other in part((0, 1), (2, 3)):
        stage.receive(PeerLost(worker=one, peer=other), PeerLost(worker=other, peer=one))
    assert list_killed(stage) == [2, 3]
    assert stage.newest.workers == (0, 1)


def test_the_coordinator_does_not_wait_longer_for_a_silent_worker(training) -> None:
    stage = training(4)
    lose(stage, 1, 0)
    stage.wait(REPORTS_S - 0.05)
    assert list_killed(stage) == []
    stage.wait(0.05)
    assert list_killed(stage) == [1]
    assert stage.newest.workers == (0, 2, 3)


def test_no_worker_goes_because_it_lost_several_that_may_be_dead(training) -> None:
    stage = training(3)
    stage.now += LIMITS.quiet_s - 0.4
    stage.report_worker(2)
    lose(stage, 0, 2)
    lose(stage, 1, 2)
    stage.wait(REPORTS_S)
    assert list_killed(stage) == []
    stage.wait(0.2)
    assert list_killed(stage) == [0, 1]


def test_a_broken_connection_counts_in_every_later_generation(training) -> None:
    stage = training(3)
    lose(stage, 2, 0)
    stage.end_worker(1)
    assert stage.newest.workers == (0,)


def test_members_stay_when_a_joiner_reaches_none_of_them(training) -> None:
    stage = training(3)
    stage.ask(AskResize(workers=4))
    stage.start(3)
    assert stage.newest.workers == (0, 1, 2, 3)
    for member in (0, 1, 2):
        lose(stage, member, 3)
    stage.wait(REPORTS_S)
    assert list_killed(stage) == [3]
    assert stage.newest.workers == (0, 1, 2)


@pytest.mark.parametrize(
    ("begun", "refuted", "killed"),
    [
        (True, None, [0, 1]),
        (True, "a later report", [2, 3, 4]),
        (True, "a lost peer", [2, 3, 4]),
        (False, None, [2, 3, 4]),
    ],
)
def test_a_joiner_is_a_member_once_its_generation_has_begun_unless_it_shows_otherwise(
    training, begun, refuted, killed
) -> None:
    stage = training(2)
    stage.ask(AskResize(workers=5))
    stage.start(2, 3, 4)
    stage.adopt()
    assert stage.newest.workers == (0, 1, 2, 3, 4)
    # All members begin together; the network parts before the others can report that.
    if begun:
        stage.adopt(2)
    if refuted == "a later report":
        stage.now += 0.01
        for worker in (3, 4):
            stage.report_worker(worker)
    for one, other in part((0, 1), (2, 3, 4)):
        lose(stage, other, one)
        # A worker that has begun reports that before it reports a lost peer.
        if other == 2 or refuted == "a lost peer":
            lose(stage, one, other)
    stage.wait(REPORTS_S)
    assert list_killed(stage) == killed


def test_a_broken_connection_between_workers_that_the_run_does_not_need_costs_nobody(training) -> None:
    stage = training(2)
    stage.start(2)
    lose(stage, 2, 0, 1)
    stage.wait(1)
    assert list_killed(stage) == []
