"""Draws histories of runs whose workers are spread over several nodes, which are lost as a whole."""

from random import Random

import msgspec

from tests.run.simulator.faults import HistoryPlan, LoseNode, draw_plan, draw_storm

MAX_WORKERS = 7


def draw_node_losses(seed: int, copies: int | None) -> HistoryPlan:
    """Draw one of the usual histories, on two or three nodes of which one or two are lost."""
    chance = Random(f"nodes of {seed}")
    usual = chance.choice((draw_plan, draw_storm))(seed, copies)
    few = usual.faults[:: chance.choice((1, 2, 4))]
    latest_s = max((fault.at_s for fault in few), default=1.0)
    losses = tuple(
        LoseNode(0.3 + chance.random() * latest_s, chance.randrange(5))
        for _ in range(chance.choice((1, 1, 2)))
    )
    return msgspec.structs.replace(
        usual,
        start=chance.randint(2, 6),
        max_workers=MAX_WORKERS,
        spread=chance.choice((2, 2, 3)),
        faults=tuple(sorted((*few, *losses), key=lambda fault: fault.at_s)),
    )
