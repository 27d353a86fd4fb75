"""A node on which no worker can join costs the others neither a worker nor the run."""

import pytest

from tests.run.simulation.test_coordinators import SEEDS, list_kinds, make_plan
from tests.run.simulator.faults import KillCoordinator
from tests.run.simulator.network import NetworkConditions
from tests.run.simulator.node_faults import KillNode
from tests.run.simulator.nodes_history import NodesHistory

UNFIT = "b"
LASTS_S = 0.08
"""How long a worker of the node lives; it takes longer to join."""


class HistoryWithUnfitNode(NodesHistory):
    def start_worker(self, worker):
        super().start_worker(worker)
        if self.find_node(worker) == UNFIT:
            self.clock.schedule_after(LASTS_S, self.workers[worker].die)


def play(seed, *faults, **others):
    history = HistoryWithUnfitNode(make_plan(seed, *faults, nodes=(2, 2), **others))
    return history, history.play()


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("start", [1, 2])
def test_the_run_grows_onto_the_other_nodes(start, seed):
    history, verdict = play(seed, start=start)
    assert (verdict.code, history.files.step) == (0, 60)
    assert [event.who for event in list_kinds(history, "node.closed")] == [f"node {UNFIT}"]
    assert list_kinds(history, "resize.requested") == []
    members = history.newest.roster.newest.members
    assert sorted(member.node for member in members) == [""] * start + ["c"] * 2


@pytest.mark.parametrize("seed", SEEDS)
def test_messages_that_are_lost_and_doubled_change_nothing(seed):
    history, verdict = play(seed, conditions=NetworkConditions(loss=0.1, doubled=0.1))
    assert (verdict.code, history.files.step) == (0, 60)
    assert len(history.newest.roster.newest.workers) == 4


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("fault", [KillCoordinator(1.0, 0.3), KillNode(2.5, 2, silent=True)])
def test_a_death_beside_an_unfit_node_costs_no_more_than_without_it(fault, seed):
    history, verdict = play(seed, fault)
    assert (verdict.code, history.files.step) == (0, 60)
    fit = 2 if isinstance(fault, KillNode) else 4
    assert len(history.newest.roster.newest.workers) == fit
