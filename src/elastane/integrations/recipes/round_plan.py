"""The plan of a recipe that trains in rounds: the memory of a worker, and what leaves a node."""

from collections.abc import Sequence

import msgspec

from elastane.integrations.recipes.recipe import RoundsSpec
from elastane.integrations.recipes.recipe_plan import PlanRequest, SizePlan
from elastane.integrations.recipes.traffic import (
    NodeTraffic,
    RoundWire,
    count_held_bytes,
    count_node_traffic,
    count_slots,
    count_traffic,
    divide_ranks,
)
from elastane.run.worker.arguments import parse_wire

MOMENTS, MOMENT_BYTES = 2, 4
"""The state of AdamW, for each trained element."""
Sizes = Sequence[tuple[int, int]]
"""The sections of the flat state: the number of elements, and the bytes of each."""


def plan_round(
    request: PlanRequest, rounds: RoundsSpec, plan: SizePlan, sections: Sizes, microbatch_s: float
) -> SizePlan:
    """Return the plan of a number of workers for rounds.

    The model is in memory twice, as it is committed and as inner steps change it. The moments of AdamW are
    whole; the momentum of the outer optimizer is in blocks. A delay adds the parameters of the round before,
    and a difference for each virtual rank of the worker.

    Args:
        plan: of a step, without rounds.
        sections: of the trained parameters.
        microbatch_s: the time of a microbatch.
    """
    batch, nodes = request.recipe.batch, request.nodes
    copies = None if request.recipe.workers.copies == "all" else request.recipe.workers.copies
    on_nodes = nodes.spread(plan.workers, request.devices.count)
    shares = divide_ranks(rounds.ranks, on_nodes)
    ranks = max(stop - start for start, stop in shares)
    averaged = list_averaged(rounds, sections)
    trained_bytes, averaged_bytes = _add_sizes(sections), _add_sizes(averaged)
    slots = max(count_slots(share, rounds.ranks) for share in shares)
    sums_bytes = slots * (trained_bytes + averaged_bytes)
    # The gradients of an inner step, or the difference of a virtual rank.
    waiting_bytes = trained_bytes * (1 + rounds.delay * ranks)
    momentum_bytes = count_held_bytes(sections, plan.workers, copies) if rounds.outer_momentum else 0
    moments_bytes = MOMENTS * MOMENT_BYTES * sum(elements for elements, _ in sections)
    inside = {count: count_traffic([*sections, *averaged], rounds.ranks, count, copies) for count in on_nodes}
    between = count_round_traffic(rounds, sections, on_nodes, copies)
    largest_bytes = max(traffic.largest_bytes for traffic in inside.values())
    microbatches = ranks * rounds.inner_steps * batch.microbatches // rounds.ranks
    sending_s = largest_bytes / request.bandwidth_bytes_per_s + between.largest_bytes / nodes.link_bytes_per_s
    computing_s = microbatches * microbatch_s
    round_s = max(computing_s, sending_s) if rounds.delay else computing_s + sending_s
    tokens = plan.tokens_per_s * plan.step_s * rounds.inner_steps
    return msgspec.structs.replace(
        plan,
        microbatches=microbatches,
        parameters_bytes=plan.parameters_bytes + trained_bytes * (1 + rounds.delay),
        gradients_bytes=sums_bytes + waiting_bytes,
        optimizer_bytes=moments_bytes + averaged_bytes + momentum_bytes,
        gpu_gradients_bytes=waiting_bytes,
        host_bytes=trained_bytes + averaged_bytes + sums_bytes,
        traffic_bytes=between.total_bytes + sum(inside[count].total_bytes for count in on_nodes),
        largest_traffic_bytes=largest_bytes,
        node_traffic_bytes=between.largest_bytes,
        step_s=round_s,
        tokens_per_s=tokens / round_s,
    )


def list_averaged(rounds: RoundsSpec, sections: Sizes) -> list[tuple[int, int]]:
    """Return the sections of the moments that virtual ranks average, beside the parameters."""
    if rounds.inner_state == "fresh":
        return []
    return [(elements, MOMENT_BYTES) for elements, _ in sections for _ in range(MOMENTS)]


def count_round_traffic(
    rounds: RoundsSpec, sections: Sizes, node_workers: Sequence[int], copies: int | None
) -> NodeTraffic:
    """Return what the nodes send to each other in a round; each of them is a site."""
    wire = parse_wire(rounds.wire, rounds.group, rounds.ranks)
    changes = moments = None
    if wire is not None:
        changes = RoundWire(wire.group, wire.count_bytes, wire.sums.count_bytes)
        moments = RoundWire(wire.group, wire.moments.count_bytes, wire.moments.count_bytes)
    parts = [count_node_traffic(sections, rounds.ranks, node_workers, copies, changes)]
    if averaged := list_averaged(rounds, sections):
        parts.append(count_node_traffic(averaged, rounds.ranks, node_workers, copies, moments))
    return NodeTraffic(sum(part.total_bytes for part in parts), sum(part.largest_bytes for part in parts))


def _add_sizes(sections: Sizes) -> int:
    return sum(elements * size for elements, size in sections)
