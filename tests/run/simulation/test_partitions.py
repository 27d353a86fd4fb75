"""Networks that break between living workers: none is killed without need, and the run continues."""

import pytest

from tests.run.simulator.faults import HistoryPlan, Kill, Resize, build_layout
from tests.run.simulator.history import KILLED, History
from tests.run.simulator.needless_kills import count_most, count_needed
from tests.run.simulator.network import NetworkConditions
from tests.run.simulator.network_faults import BreakLink, CutControl, PartMesh, SilentDeath, WallOff
from tests.run.simulator.reference_run import Shape
from tests.run.simulator.world import Pace

SEEDS = [0, *(pytest.param(seed, marks=pytest.mark.long) for seed in range(1, 5))]
CUT_S = 20.0


def play(seed, *faults, start=3, copies=None, steps=40, conditions=None):
    """Play a plan to its end, and return the history with its verdict."""
    plan = HistoryPlan(
        seed=seed,
        shape=Shape(layout=build_layout(8, 4, copies, 3), steps=steps),
        start=start,
        faults=faults,
        conditions=conditions or NetworkConditions(),
        pace=Pace(start_s=0.1),
    )
    history = History(plan)
    return history, history.play()


def list_killed(history):
    return sorted(end.worker for end in history.agent.exits if end.code == KILLED)


def find_last_step_s(history):
    return max(line.time for line in history.files.ledger.values())


# -- a joiner behind a wall ---------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("behind", [(), (0,), (1, 2)], ids=["all", "one", "two"])
def test_a_joiner_that_reaches_no_member_costs_none(behind, seed):
    history, verdict = play(seed, WallOff(0.5, behind, 0.3), Resize(0.55, 4))
    assert verdict.code == 0
    assert not {0, 1, 2} & set(list_killed(history))


@pytest.mark.parametrize("seed", SEEDS)
def test_a_successor_behind_a_wall_costs_no_member(seed):
    history, verdict = play(seed, WallOff(0.5, (), 0.3), Kill(0.55, 1))
    assert verdict.code == 0
    assert not {0, 2} & set(list_killed(history))


# -- partitions ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("copies", [None, 3])
@pytest.mark.parametrize("for_s", [0.2, 4.0])
def test_a_partition_in_the_middle_costs_one_half(for_s, copies, seed):
    history, verdict = play(seed, PartMesh(0.8, (2, 3), for_s), start=4, copies=copies)
    assert verdict.code == 0
    assert len({0, 1, 2, 3} & set(list_killed(history))) == 2


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("side", [(0,), (2,), (1, 2, 3)])
def test_a_partition_costs_the_smaller_side(side, seed):
    history, verdict = play(seed, PartMesh(0.8, side, 0.5), start=4)
    smaller = min(set(side), {0, 1, 2, 3} - set(side), key=len)
    assert verdict.code == 0
    assert {0, 1, 2, 3} & set(list_killed(history)) == smaller


@pytest.mark.parametrize("seed", SEEDS)
def test_a_partition_in_one_direction_ends(seed):
    _, verdict = play(seed, PartMesh(0.8, (2, 3), 4.0, one_way=True), start=4)
    assert verdict.code == 0


@pytest.mark.parametrize("seed", SEEDS)
def test_a_side_that_also_loses_the_coordinator_does_not_stop_the_other(seed):
    cuts = [CutControl(0.8, which, CUT_S) for which in (2, 3)]
    history, verdict = play(seed, PartMesh(0.8, (2, 3), CUT_S), *cuts, start=4)
    assert verdict.code == 0
    assert {0, 1, 2, 3} & set(list_killed(history)) == {2, 3}
    assert find_last_step_s(history) < CUT_S


# -- single links -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("one_way", [False, True])
def test_a_broken_link_costs_one_of_its_ends(one_way, seed):
    history, verdict = play(seed, BreakLink(0.8, 0, 1, one_way))
    assert verdict.code == 0
    assert list_killed(history) in ([0], [2])


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("apart_s", [0.01, 0.3, 2.0])
def test_flapping_links_cost_no_more_than_a_worker_each(apart_s, seed):
    history, verdict = play(
        seed,
        BreakLink(0.8, 0, 1),
        BreakLink(0.8 + apart_s, 0, 1),
        BreakLink(0.8 + 2 * apart_s, 1, 2),
        start=5,
        steps=80,
    )
    assert verdict.code == 0
    assert len(list_killed(history)) <= 3


# -- the control network, and silence -----------------------------------------------------------------------


@pytest.mark.parametrize("seed", SEEDS)
def test_training_continues_while_a_worker_cannot_reach_the_coordinator(seed):
    history, verdict = play(seed, CutControl(0.8, 1, CUT_S), steps=20)
    assert verdict.code == 0
    assert list_killed(history) == []
    assert find_last_step_s(history) < CUT_S / 2


@pytest.mark.parametrize("seed", SEEDS)
def test_a_silent_death_costs_nobody_else(seed):
    history, verdict = play(seed, SilentDeath(0.8, 1))
    assert verdict.code == 0
    assert list_killed(history) == [1]


@pytest.mark.parametrize("seed", range(20))
def test_two_silent_deaths_at_once_do_not_cost_the_survivor(seed):
    history, verdict = play(seed, SilentDeath(0.8, 0), SilentDeath(0.8, 0))
    assert verdict.code == 0
    assert list_killed(history) == [0, 1]


# -- the smallest number of kills ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("links", "needed", "most"),
    [
        ((), 0, 0),
        (("ab",), 1, 1),
        (("ab", "cd"), 2, 2),
        (("ab", "ac", "ad"), 1, 3),
        (("ac", "ad", "bc", "bd"), 2, 3),
        (("ab", "bc", "ca"), 2, 2),
    ],
)
def test_the_number_of_kills_that_links_need(links, needed, most):
    pairs = frozenset(map(frozenset, links))
    assert (count_needed(pairs), count_most(pairs)) == (needed, most)
