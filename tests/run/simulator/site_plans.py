"""Histories of runs with bound data: rounds wait for an absent site, or leave its virtual ranks out.

A worker that starts is at the site with the fewest living workers; with several nodes, each is at one site.
"""

from random import Random

import msgspec

from elastane.run.nouns.sites import AbsentRule, deal_ranks_to_sites
from tests.run.simulator.faults import Drain, HistoryPlan, Resize, draw_plan, draw_storm
from tests.run.simulator.network_plans import draw_network
from tests.run.simulator.node_plans import draw_nodes

SITES = ("eu", "jp", "us")
OTHERS = 1_000_000


def draw_waits(seed: int, copies: int | None) -> HistoryPlan:
    """Draw a history on one node in which rounds wait for absent sites."""
    chance = Random(f"waits of {seed}")
    plan = _bind(chance, chance.choice((draw_plan, draw_storm, draw_network))(seed, copies), "wait")
    # A site that is given up for good would make the run wait for ever.
    faults = tuple(fault for fault in plan.faults if not isinstance(fault, Resize | Drain))
    return msgspec.structs.replace(plan, faults=faults, start=max(plan.start, len(SITES)))


def draw_skips(seed: int, copies: int | None) -> HistoryPlan:
    """Draw a history on one node in which rounds leave absent sites out.

    Copies are whole, as such a run demands; their number stands for another seed.
    """
    chance, seed = Random(f"skips of {seed} {copies}"), seed + OTHERS * (copies or 0)
    return _bind(chance, chance.choice((draw_plan, draw_storm, draw_network))(seed, None), "skip")


def draw_node_skips(seed: int, copies: int | None) -> HistoryPlan:
    """Draw such a history on several nodes, which die and are parted."""
    chance, seed = Random(f"skips on nodes of {seed} {copies}"), seed + OTHERS * (copies or 0)
    return _bind(chance, draw_nodes(seed, None), "skip")


def _bind(chance: Random, plan: HistoryPlan, absent: AbsentRule) -> HistoryPlan:
    sites = SITES[: chance.choice((2, 2, 3))]
    before = plan.shape.layout
    ranks = -(-before.virtual_ranks // len(sites)) * len(sites)
    layout = msgspec.structs.replace(
        before,
        virtual_ranks=ranks,
        rank_sites=deal_ranks_to_sites(sites, ranks),
        absent=absent,
        spot_checks=chance.choice(("off", "off", "every")),
    )
    return msgspec.structs.replace(plan, shape=msgspec.structs.replace(plan.shape, layout=layout))
