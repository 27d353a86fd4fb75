"""Runs on several nodes: nodes die, networks part, and coordinators take over from each other."""

import pytest

from tests.simulator.faults import HistoryPlan, build_layout
from tests.simulator.node_faults import KillNode
from tests.simulator.nodes_history import NodesHistory
from tests.simulator.reference_run import Shape
from tests.simulator.world import Pace

SEEDS = range(5)


def make_plan(seed, *faults, start=2, nodes=(2,), copies=None, steps=150, **others):
    return HistoryPlan(
        seed=seed,
        shape=Shape(layout=build_layout(12, 4, copies, 3), steps=steps),
        start=start,
        max_workers=8,
        faults=faults,
        nodes=nodes,
        pace=Pace(start_s=0.1),
        **others,
    )


def play(seed, *faults, **others):
    history = NodesHistory(make_plan(seed, *faults, **others))
    return history, history.play()


@pytest.mark.parametrize("seed", SEEDS)
def test_nodes_without_faults_finish(seed):
    history, verdict = play(seed, nodes=(2, 1))
    assert verdict.code == 0
    assert len(history.newest.roster.newest.workers) == 5


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("silent", [False, True])
@pytest.mark.parametrize("which", [0, 1, 2])
def test_any_node_may_die(which, silent, seed):
    history, verdict = play(seed, KillNode(2.0, which, silent), nodes=(2, 2))
    assert verdict.code == 0
    assert history.files.step == 150
