"""Histories of runs that check a virtual rank in each step, with machines that compute wrongly."""

from random import Random

import msgspec

from tests.run.simulator.faults import HistoryPlan, SpoilChecks, draw_plan, draw_storm
from tests.run.simulator.network_plans import draw_network


def draw_spot_checks(seed: int, copies: int | None) -> HistoryPlan:
    """Draw a history on one node, with a spot check in each step and up to three faulty machines."""
    chance = Random(f"spot checks of {seed}")
    plan = chance.choice((draw_plan, draw_storm, draw_network))(seed, copies)
    last_s = max((fault.at_s for fault in plan.faults), default=0.5)
    count = chance.choice((0, 1, 1, 2, 3))
    spoilt = (SpoilChecks(chance.random() * last_s, chance.randrange(5)) for _ in range(count))
    layout = msgspec.structs.replace(plan.shape.layout, spot_checks="every")
    shape = msgspec.structs.replace(plan.shape, layout=layout)
    faults = tuple(sorted((*plan.faults, *spoilt), key=lambda fault: fault.at_s))
    return msgspec.structs.replace(plan, shape=shape, faults=faults)
