"""Histories of runs with workers of several processes, which compute neighbouring virtual ranks together.

A worker is one process here: its further processes die with it. The histories show that members assign groups
of virtual ranks, and never divide a group after a death.
"""

from random import Random

import msgspec

from tests.run.simulator.faults import HistoryPlan, draw_plan, draw_storm
from tests.run.simulator.network_plans import draw_network


def draw_gangs(seed: int, copies: int | None) -> HistoryPlan:
    """Draw a history on one node, with workers of two or four processes."""
    chance = Random(f"gangs of {seed}")
    plan = chance.choice((draw_plan, draw_storm, draw_network))(seed, copies)
    together = chance.choice((2, 4))
    before = plan.shape.layout
    layout = msgspec.structs.replace(before, together=together, virtual_ranks=before.virtual_ranks * together)
    shape = msgspec.structs.replace(
        plan.shape, layout=layout, evaluation_size=plan.shape.evaluation_size * together
    )
    return msgspec.structs.replace(plan, shape=shape)
