"""Runs on several nodes: nodes die, networks part, and coordinators take over from each other."""

import logging
from itertools import pairwise

import pytest

from tests.run.simulator.checkers import Violation
from tests.run.simulator.faults import HistoryPlan, Kill, KillCoordinator, build_layout
from tests.run.simulator.node_faults import AskOneSide, HideClaims, KillNode, PartNodes, PauseCoordinator
from tests.run.simulator.nodes_history import NodesHistory
from tests.run.simulator.reference_run import Shape
from tests.run.simulator.world import Pace

SEEDS = [0, *(pytest.param(seed, marks=pytest.mark.long) for seed in range(1, 8))]
LONG_S = 12.0


@pytest.fixture(autouse=True)
def _no_warnings_of_claims(caplog):
    # A term that waits for the list warns of that.
    caplog.set_level(logging.ERROR)


def make_plan(seed, *faults, start=2, nodes=(2,), copies=None, steps=60, **others):
    return HistoryPlan(
        seed=seed,
        shape=Shape(layout=build_layout(12, 4, copies, 3), steps=steps),
        start=start,
        max_workers=8,
        faults=faults,
        nodes=nodes,
        pace=Pace(start_s=0.1, leaf_s=0.05),
        **others,
    )


def play(seed, *faults, **others):
    """Play a plan to its end, and return the history with its verdict."""
    history = NodesHistory(make_plan(seed, *faults, **others))
    return history, history.play()


def list_killed(history, nodes=(0, 1, 2)):
    """Return the workers of `nodes` that were killed, as far as living agents know."""
    places = [history.nodes[index] for index in nodes if index < len(history.nodes)]
    return {end.worker for node in places if node.alive for end in node.agent.exits if end.code != 0}


def list_terms(history):
    """Return the terms that coordinators have served, with their nodes."""
    return sorted((one.term, one.node) for node in history.nodes for one in node.coordinators)


def list_kinds(history, kind):
    return [event for event in history.files.events if event.kind == kind]


@pytest.mark.parametrize("seed", SEEDS)
def test_a_run_on_three_nodes_uses_all_their_slots(seed):
    history, verdict = play(seed, nodes=(2, 1))
    assert verdict.code == 0
    assert len(history.newest.roster.newest.workers) == 5


# -- why unplanned generations are claims -------------------------------------------------------------------


@pytest.mark.parametrize("seed", SEEDS)
def test_without_claims_two_coordinators_make_two_histories(seed):
    faults = PartNodes(2.0, (1,), 2 * LONG_S), AskOneSide(25.0, 1)
    with pytest.raises(Violation, match="have both committed rounds"):
        play(seed, *faults, steps=120, claims=False)


@pytest.mark.parametrize("seed", SEEDS)
def test_with_claims_the_same_partition_leaves_one_history(seed):
    faults = PartNodes(2.0, (1,), 2 * LONG_S), AskOneSide(25.0, 1)
    history, verdict = play(seed, *faults, steps=120)
    assert (verdict.code, history.files.step) == (0, 120)


# -- deaths -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("silent", [False, True])
@pytest.mark.parametrize("which", [0, 1, 2])
def test_any_node_may_die(which, silent, seed):
    history, verdict = play(seed, KillNode(2.0, which, silent), nodes=(2, 2))
    assert (verdict.code, history.files.step) == (0, 60)
    assert list_killed(history) == set()


@pytest.mark.parametrize("seed", SEEDS)
def test_nodes_die_one_after_the_other_up_to_the_last(seed):
    deaths = KillNode(2.0, 0), KillNode(9.0, 0, silent=False), KillNode(16.0, 0)
    history, verdict = play(seed, *deaths, nodes=(2, 2, 2), steps=60)
    assert (verdict.code, history.files.step) == (0, 60)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_coordinator_that_dies_costs_no_worker(seed):
    history, verdict = play(seed, KillCoordinator(2.0, 0.1), KillCoordinator(4.0, 0.1), nodes=(2, 2))
    assert (verdict.code, history.files.step) == (0, 60)
    assert list_killed(history) == set()
    assert {node for _, node in list_terms(history)} == {""}


# -- partitions ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(("control", "mesh"), [(True, True), (True, False), (False, True)])
@pytest.mark.parametrize("side", [(0,), (1,), (1, 2)])
def test_a_partition_costs_the_smaller_side_wherever_the_coordinator_is(side, control, mesh, seed):
    fault = PartNodes(2.0, side, LONG_S, control=control, mesh=mesh)
    history, verdict = play(seed, fault, nodes=(2, 2), steps=60)
    assert (verdict.code, history.files.step) == (0, 60)
    larger = {0, 1, 2} - set(side) if len(side) == 1 else set(side)
    assert list_killed(history, larger) == set()


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("for_s", [0.5, 2.0, 4.0])
def test_a_short_control_partition_without_silence_costs_nothing(for_s, seed):
    history, verdict = play(seed, PartNodes(2.0, (1,), for_s, mesh=False), nodes=(2, 2))
    assert (verdict.code, history.files.step) == (0, 60)
    if for_s < 2.5:
        assert list_killed(history) == set()


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("copies", [None, 2])
@pytest.mark.parametrize("which", [0, 2, 4])
def test_a_death_while_only_control_connections_are_broken_costs_one_worker(which, copies, seed):
    """Members that do not hear the coordinator learn of its generation from their peers."""
    faults = PartNodes(2.0, (2,), LONG_S, mesh=False), Kill(3.0, which)
    history, verdict = play(seed, *faults, nodes=(2, 2), copies=copies)
    assert (verdict.code, history.files.step) == (0, 60)
    assert len(list_killed(history)) == 1
    times = [line.time for line in history.files.ledger.values()]
    assert max(later - earlier for earlier, later in pairwise(times)) < 2.0


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("side", [(0,), (1,), (1, 2)])
def test_a_partition_in_one_direction_ends(side, seed):
    history, verdict = play(seed, PartNodes(2.0, side, 8.0, one_way=True), nodes=(2, 2))
    assert (verdict.code, history.files.step) == (0, 60)


# -- stale coordinators -------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("for_s", [1.0, 4.0, 9.0])
@pytest.mark.parametrize("skew_s", [0.0, 300.0])
def test_a_coordinator_that_was_stopped_kills_nobody_when_it_wakes_up(skew_s, for_s, seed):
    history, verdict = play(seed, PauseCoordinator(2.0, for_s), nodes=(2, 2), skew_s=skew_s)
    assert (verdict.code, history.files.step) == (0, 60)
    assert list_killed(history) == set()
    assert len(list_terms(history)) == (1 if for_s < 3.0 else 2)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_stale_coordinator_decides_nothing_after_a_death(seed):
    faults = PauseCoordinator(2.0, 9.0), Kill(2.5, 3), KillNode(8.0, 2)
    history, verdict = play(seed, *faults, nodes=(2, 2), steps=60)
    assert (verdict.code, history.files.step) == (0, 60)


# -- the claim list -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", SEEDS)
def test_training_goes_on_while_the_claim_list_is_away(seed):
    history, verdict = play(seed, HideClaims(1.5, 60.0))
    assert (verdict.code, history.files.step) == (0, 60)
    assert max(line.time for line in history.files.ledger.values()) < 60.0
    # Only the end waits for it.
    (waiting,) = list_kinds(history, "claim.waiting")
    assert (waiting.step, history.clock.now > 61.5) == (60, True)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_death_waits_for_the_claim_list_and_is_recorded_once(seed):
    history, verdict = play(seed, HideClaims(1.5, 6.0, forgetful=0.5), Kill(2.0, 3))
    assert (verdict.code, history.files.step) == (0, 60)
    assert len(list_kinds(history, "claim.waiting")) >= 1
    assert len({event.why for event in list_kinds(history, "claim.waiting")}) == len(
        list_kinds(history, "claim.waiting")
    )


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("for_s", [12.0, 75.0])
def test_training_goes_on_without_a_coordinator_however_long_the_claim_list_is_away(for_s, seed):
    history, verdict = play(seed, HideClaims(1.5, for_s), KillCoordinator(2.0, 0.1), nodes=(2, 2))
    assert (verdict.code, history.files.step) == (0, 60)
    assert list_killed(history) == set()
    # The coordinator that waited for the list is the only further one.
    assert list_terms(history) == [(1, ""), (2, "")]


@pytest.mark.parametrize("seed", SEEDS)
def test_the_death_of_the_node_in_charge_waits_for_the_claim_list(seed):
    history, verdict = play(seed, HideClaims(1.5, 75.0), KillNode(2.0, 0), nodes=(2, 2))
    assert (verdict.code, history.files.step) == (0, 60)
    assert list_killed(history) == set()


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("side", [(0,), (1,), (1, 2)])
def test_a_side_that_is_cut_off_while_the_claim_list_is_away_waits(side, seed):
    faults = HideClaims(1.5, 8.0), PartNodes(2.0, side, 90.0)
    history, verdict = play(seed, *faults, nodes=(2, 2), steps=60)
    assert (verdict.code, history.files.step) == (0, 60)
    larger = {0, 1, 2} - set(side) if len(side) == 1 else set(side)
    assert list_killed(history, larger) == set()


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("copies", [None, 2])
@pytest.mark.parametrize("for_s", [2.0, 8.0, 20.0])
def test_an_outage_of_the_network_and_the_claim_list_costs_nothing(for_s, copies, seed):
    """No node reaches another one: each coordinator would take the silence of the others for their deaths."""
    parts = (PartNodes(2.0, (index,), for_s, short=True) for index in (0, 1))
    history, verdict = play(seed, HideClaims(2.0, for_s), *parts, nodes=(2, 2), copies=copies)
    assert (verdict.code, history.files.step) == (0, 60)
    assert list_killed(history) == set()


@pytest.mark.parametrize("seed", SEEDS)
def test_a_node_that_died_in_an_outage_is_lost_after_it(seed):
    parts = (PartNodes(2.0, (index,), 8.0, short=True) for index in (0, 1))
    history, verdict = play(seed, HideClaims(2.0, 8.0), *parts, KillNode(4.0, 2), nodes=(2, 2))
    assert (verdict.code, history.files.step) == (0, 60)
    assert list_killed(history) == set()
    assert [event.who for event in list_kinds(history, "node.lost")] == ["node c"]
