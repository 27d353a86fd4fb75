"""Draws histories with network faults."""

from random import Random

from elastane.run.protocol.layout import Layout
from tests.run.simulator.faults import (
    Drain,
    Fault,
    HistoryPlan,
    Kill,
    KillCoordinator,
    Resize,
    Trigger,
    build_layout,
)
from tests.run.simulator.network import NetworkConditions
from tests.run.simulator.network_faults import SIDES, BreakLink, CutControl, PartMesh, SilentDeath, WallOff
from tests.run.simulator.reference_run import Shape
from tests.run.simulator.world import Pace

MAX_WORKERS = 5


def draw_network(seed: int, copies: int | None) -> HistoryPlan:
    """Draw a history with one to three network faults, and sometimes a few of the usual ones."""
    chance = Random(f"network of {seed}")
    layout = _draw_layout(chance, copies)
    shape = Shape(
        layout=layout,
        steps=chance.choice((8, 16, 24)),
        evaluate_every=chance.choice((0, 0, 3)),
        evaluation_size=chance.choice((1, 3)),
    )
    pace = chance.choice((Pace(), Pace(start_s=0.1), Pace(leaf_s=0.1, user_s=0.1), Pace(leaf_s=0.3)))
    start = chance.choice((2, 3, 3, 4, 4, 5))
    lasts_s = shape.steps * (0.03 + pace.user_s + layout.virtual_ranks / start * pace.leaf_s)
    times = [0.5 + chance.random() * min(lasts_s, 6.0) for _ in range(chance.randint(1, 3))]
    drawn = [fault for at_s in times for fault in _draw_network_fault(chance, at_s, start)]
    drawn += [
        _draw_usual_fault(chance, chance.choice(times) + chance.uniform(-0.3, 1.0))
        for _ in range(chance.choice((0, 0, 0, 1, 2)))
    ]
    return HistoryPlan(
        seed=seed,
        shape=shape,
        start=start,
        max_workers=MAX_WORKERS,
        faults=tuple(sorted(drawn, key=lambda fault: fault.at_s)),
        shared=chance.choice((False, False, True)),
        conditions=chance.choice(
            (
                NetworkConditions(),
                NetworkConditions(),
                NetworkConditions(usual_s=0.0005, rare_s=0.001),
                NetworkConditions(loss=0.1, doubled=0.1),
                NetworkConditions(usual_s=0.02, rare_s=0.1),
            )
        ),
        pace=pace,
    )


def _draw_layout(chance: Random, copies: int | None) -> Layout:
    return build_layout(chance.randint(2, 10), chance.randint(1, 5), copies, chance.randint(1, 4))


def _draw_network_fault(chance: Random, at_s: float, start: int) -> list[Fault]:
    for_s = chance.choice((0.2, 1.0, 4.0))
    one_way = chance.random() < 0.2
    match chance.choices(range(5), weights=(4, 4, 3, 2, 2))[0]:
        case 0:
            return [BreakLink(at_s, chance.randrange(5), chance.randrange(5), one_way)]
        case 1:
            side = tuple(sorted(chance.sample(range(SIDES), chance.randint(1, SIDES - 1))))
            faults: list[Fault] = [PartMesh(at_s, side, for_s, one_way)]
            if chance.random() < 0.25:
                # The coordinator is on the other side.
                faults += [CutControl(at_s, which, for_s) for which in side if which < start]
            return faults
        case 2:
            from_ = tuple(chance.sample(range(5), chance.choice((0, 1, 2))))
            grown = min(start + 1, MAX_WORKERS)
            cause: Fault = (
                Resize(at_s + 0.1, grown) if grown > start else Kill(at_s + 0.1, chance.randrange(5))
            )
            return [WallOff(at_s, from_, for_s), cause]
        case 3:
            return [CutControl(at_s, chance.randrange(5), for_s)]
        case _:
            return [SilentDeath(at_s, chance.randrange(5))]


def _draw_usual_fault(chance: Random, at_s: float) -> Fault:
    which = chance.randrange(5)
    match chance.randrange(5):
        case 0:
            return Resize(at_s, chance.randint(2, MAX_WORKERS))
        case 1:
            return Drain(at_s, which)
        case 2:
            return Kill(at_s, which)
        case 3:
            return Trigger(at_s, which, chance.choice(("Vote", "CommitRound", "Status")), 0)
        case _:
            return KillCoordinator(at_s, chance.random() * 0.3)
