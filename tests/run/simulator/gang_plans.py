"""Draws histories of runs with workers of several processes, of which each may die, hang or be slow."""

from random import Random

import msgspec

from tests.run.simulator.faults import HistoryPlan, draw_plan, draw_storm
from tests.run.simulator.gang_faults import FuseProcess, GangFault, KillProcess, PauseProcess
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
    last_s = max((fault.at_s for fault in plan.faults), default=2.0)
    drawn = [_draw_fault(chance, chance.random() * last_s) for _ in range(chance.choice((0, 1, 2, 4)))]
    faults = tuple(sorted((*plan.faults, *drawn), key=lambda fault: fault.at_s))
    # Gangs read each other's memory: so far they are on one machine.
    return msgspec.structs.replace(plan, shape=shape, faults=faults, shared=True)


def _draw_fault(chance: Random, at_s: float) -> GangFault:
    which, process = chance.randrange(5), chance.randrange(3)
    match chance.choices(range(3), weights=(3, 6, 2))[0]:
        case 0:
            return KillProcess(at_s, which, process)
        case 1:
            return FuseProcess(at_s, which, process, chance.randrange(60))
        case _:
            return PauseProcess(at_s, which, process, chance.choice((0.05, 0.5, 2.0)))
