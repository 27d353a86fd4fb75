"""Draws histories of runs on several nodes, with faults of nodes, networks, coordinators and claims."""

from random import Random

import msgspec

from tests.run.simulator.faults import (
    Fault,
    HistoryPlan,
    Kill,
    KillCoordinator,
    Resize,
    Trigger,
    build_layout,
)
from tests.run.simulator.network import NetworkConditions
from tests.run.simulator.node_faults import (
    HideClaims,
    KillNode,
    LeaveNode,
    PartNodes,
    PauseCoordinator,
    SlowClaims,
)
from tests.run.simulator.reference_run import Shape
from tests.run.simulator.world import Pace

LENGTHS_S = (0.5, 2.0, 4.0, 7.0, 12.0)
LONG_OUTAGE_S = 75.0
"""Longer than an agent waits for anything else."""


def draw_nodes(seed: int, copies: int | None) -> HistoryPlan:
    """Draw a history of two to four nodes, with one to four faults of theirs and sometimes usual ones."""
    chance = Random(f"nodes of {seed}")
    start = chance.choice((1, 1, 2, 2, 3))
    nodes = tuple(chance.choice((1, 1, 2)) for _ in range(chance.choice((1, 2, 2, 3))))
    shape = Shape(
        layout=build_layout(chance.choice((10, 12)), chance.randint(1, 4), copies, chance.randint(1, 4)),
        steps=chance.choice((20, 40, 60)),
        evaluate_every=chance.choice((0, 0, 5)),
        evaluation_size=chance.choice((1, 3)),
    )
    times = [1.5 + chance.random() * 8.0 for _ in range(chance.randint(1, 4))]
    drawn = [_draw_node_fault(chance, at_s, 1 + len(nodes)) for at_s in times]
    drawn += [
        _draw_usual_fault(chance, chance.choice(times) + chance.uniform(-0.3, 6.0))
        for _ in range(chance.choice((0, 0, 1, 2)))
    ]
    return HistoryPlan(
        seed=seed,
        shape=shape,
        start=start,
        max_workers=10,
        faults=tuple(sorted(drawn, key=lambda fault: fault.at_s)),
        nodes=nodes,
        skew_s=chance.choice((0.0, 0.0, 5.0, 300.0)),
        conditions=chance.choice(
            (
                NetworkConditions(),
                NetworkConditions(),
                NetworkConditions(loss=0.1, doubled=0.1),
                NetworkConditions(usual_s=0.02, rare_s=0.1),
            )
        ),
        pace=chance.choice((Pace(start_s=0.1, leaf_s=0.05), Pace(start_s=0.1, leaf_s=0.1))),
    )


def draw_leaving_nodes(seed: int, copies: int | None) -> HistoryPlan:
    """Draw a history of `draw_nodes` in which nodes also leave, and some of them join again."""
    plan = draw_nodes(seed, copies)
    chance = Random(f"leaves of {seed}")
    leaves = tuple(
        LeaveNode(
            1.0 + chance.random() * 8.0,
            chance.randrange(4),
            drained=chance.random() < 0.3,
            back_s=chance.choice((None, 1.0, 4.0)),
        )
        for _ in range(chance.choice((1, 1, 2, 3)))
    )
    faults = sorted((*plan.faults[:: chance.choice((1, 2))], *leaves), key=lambda fault: fault.at_s)
    return msgspec.structs.replace(plan, faults=tuple(faults))


def draw_outages(seed: int, copies: int | None) -> HistoryPlan:
    """Draw a history of `draw_nodes` with an outage of the network between nodes and of their claim list.

    Most outages are short: the connections of workers outlive them. Sometimes the list is away for longer,
    for less long or for a few nodes only, or slow, and sometimes a node dies while the run begins.
    """
    plan = draw_nodes(seed, copies)
    chance = Random(f"outages of {seed}")
    nodes = range(1 + len(plan.nodes))
    at_s, for_s = 1.5 + chance.random() * 6.0, chance.choice((1.0, 4.0, 7.0, 12.0, 20.0))
    early_s, late_s = chance.choice(
        ((0.0, 0.0), (0.0, 0.0), (0.5, 0.0), (0.0, 2.0), (-1.0, 0.0), (0.0, -1.5))
    )
    hidden = chance.choice(((), (), tuple(chance.sample(nodes, chance.randint(1, len(nodes))))))
    side = tuple(sorted(chance.sample(nodes, chance.randint(1, len(nodes) - 1))))
    sides = chance.choice(([side], [(index,) for index in nodes[1:]]))
    short = chance.random() < 0.75
    away_s = max(0.5, early_s + for_s + late_s)
    outage: tuple[Fault, ...] = (
        HideClaims(at_s - early_s, away_s, chance.choice((0.0, 0.0, 0.3)), hidden),
        *(PartNodes(at_s, side, for_s, short=short) for side in sides),
    )
    others = list(plan.faults[:: chance.choice((1, 2, len(plan.faults)))])
    if chance.random() < 0.3:
        others.append(SlowClaims(chance.random() * 8.0, chance.choice((4.0, 20.0))))
    if chance.random() < 0.2:
        # While the first workers begin, or others join.
        others.append(KillNode(0.2 + chance.random() * 1.5, chance.choice(nodes), chance.random() < 0.5))
    faults = sorted((*others, *outage), key=lambda fault: fault.at_s)
    return msgspec.structs.replace(plan, faults=tuple(faults))


def _draw_node_fault(chance: Random, at_s: float, nodes: int) -> Fault:
    for_s = chance.choice(LENGTHS_S)
    match chance.choices(range(5), weights=(3, 6, 2, 2, 2))[0]:
        case 0:
            return KillNode(at_s, chance.randrange(nodes), chance.random() < 0.5)
        case 1:
            side = tuple(sorted(chance.sample(range(nodes), chance.randint(1, nodes - 1))))
            control, mesh = chance.choice(((True, True), (True, True), (True, False), (False, True)))
            return PartNodes(at_s, side, for_s, control, mesh, chance.random() < 0.2)
        case 2:
            return PauseCoordinator(at_s, for_s)
        case 3:
            away_s = chance.choice((for_s, for_s, LONG_OUTAGE_S))
            return HideClaims(at_s, away_s, chance.choice((0.0, 0.3)))
        case _:
            return KillCoordinator(at_s, chance.random() * 0.3)


def _draw_usual_fault(chance: Random, at_s: float) -> Fault:
    which = chance.randrange(5)
    match chance.randrange(3):
        case 0:
            return Resize(at_s, chance.randint(2, 6))
        case 1:
            return Kill(at_s, which)
        case _:
            return Trigger(at_s, which, chance.choice(("Vote", "CommitRound", "Status")), 0)
