"""The plan of a recipe, computed in a process with torch; ``elastane recipe plan`` starts it.

    python -m elastane.integrations.recipes.memory_plan REQUEST

REQUEST is a `PlanRequest` in JSON. The program prints a `RecipePlan` in JSON.
"""

import sys

import msgspec

from elastane.common.errors import BadInput
from elastane.integrations.recipes.activations import count_flops, estimate_activations
from elastane.integrations.recipes.model_measures import ModelMeasures, measure_flops, measure_model
from elastane.integrations.recipes.recipe import Recipe
from elastane.integrations.recipes.recipe_plan import PlanRequest, RecipePlan, SizePlan, list_sizes
from elastane.integrations.recipes.round_plan import plan_round
from elastane.integrations.recipes.traffic import (
    count_held_bytes,
    count_node_traffic,
    count_slots,
    count_traffic,
    divide_ranks,
)
from elastane.run.nouns.torch_answers import print_answer
from elastane.run.protocol.tree import cover
from elastane.run.worker.state.optimizer_shards import estimate_state_bytes
from elastane.run.worker.state.slot_memory import are_added_on_device

ELEMENT_BYTES = {"float32": 4, "bfloat16": 2}


def plan_recipe(request: PlanRequest) -> RecipePlan:
    """Return the memory, the traffic and the expected speed of a recipe at each number of workers.

    Memory counts what a process of a worker keeps: parameters, partial sums of gradients, moments, and the
    activations of a microbatch; a GPU that lacks the memory for partial sums has them on its host. Traffic
    follows from the protocol. The time of a step is ``microbatches * tokens * FLOPs per token / speed +
    traffic of the busiest process in its node / bandwidth + traffic of the busiest node / its link``; a real
    step overlaps these parts.

    Raises:
        BadInput: the recipe allows no number of workers that the devices suffice for.
    """
    recipe, devices, rounds = request.recipe, request.devices, request.recipe.training.rounds
    inner_steps = 0 if rounds is None else rounds.inner_steps
    processes = recipe.workers.processes
    if processes > 1 and request.nodes.count > 1:
        raise BadInput(
            f"a run with workers.processes: {processes} cannot be planned for several nodes",
            means="such a run stays on one machine so far",
            do="leave --nodes out",
        )
    sizes = list_sizes(devices.count // processes, recipe.most_workers, recipe.workers.sizes)
    if not sizes:
        least = min(recipe.workers.sizes, default=1)
        raise BadInput(
            f"{devices.count} devices are fewer than the recipe needs: its smallest size is {least}"
            + (f", with {processes} processes for each worker" if processes > 1 else ""),
            means="the run could not start",
            do="plan for more devices, or allow smaller sizes: --set workers.sizes=[]"
            if processes == 1
            else "plan for more devices, or for fewer processes: --set workers.processes=1",
        )
    measures = measure_model(recipe)
    flops_per_token = _count_flops(recipe, measures)
    flops_per_s = request.flops_per_s or measure_flops(recipe.model.dtype)
    speed = flops_per_s / flops_per_token
    return RecipePlan(
        parameters=measures.parameters,
        trained=measures.trained,
        tokens_per_step=recipe.batch.size * _count_sample_tokens(recipe) * max(1, inner_steps),
        flops_per_token=flops_per_token,
        flops_per_s=flops_per_s,
        is_measured=request.flops_per_s is None,
        bandwidth_bytes_per_s=request.bandwidth_bytes_per_s,
        nodes=request.nodes,
        devices=devices,
        sizes=tuple(plan_size(request, measures, workers, speed) for workers in sizes),
        processes=processes,
        inner_steps=inner_steps,
        delay=0 if rounds is None else rounds.delay,
    )


def plan_size(request: PlanRequest, measures: ModelMeasures, workers: int, tokens_per_s: float) -> SizePlan:
    """Return the plan of one number of equally fast workers, at most as many as a step has microbatches.

    Process i of a worker exchanges its part of the state with process i of the others.
    """
    recipe, devices, processes = request.recipe, request.devices, request.recipe.workers.processes
    ranks, copies = recipe.most_workers, recipe.workers.copies
    gathered = count_gathered(measures, processes, passes=3 if recipe.task == "preference" else 2)
    measures = measures.divide(processes)
    most_copies = None if copies == "all" else copies
    on_nodes = request.nodes.spread(workers, devices.count)
    shares = divide_ranks(ranks, on_nodes)
    largest = max(stop - start for start, stop in shares)
    # Inside a node its workers do what those of a run on one node do.
    inside = {count: count_traffic(measures.sections, ranks, count, most_copies) for count in set(on_nodes)}
    between = count_node_traffic(measures.sections, ranks, on_nodes, most_copies)
    largest_bytes = max(traffic.largest_bytes for traffic in inside.values())
    trained_bytes = sum(elements * size for elements, size in measures.sections)
    states = [(elements, estimate_state_bytes(1, size)) for elements, size in measures.sections]
    # Of two sibling microbatches, the gradients of the first wait for those of the second.
    waiting = trained_bytes if largest > 1 else measures.largest_bytes
    slots = max(count_slots(share, ranks) for share in shares)
    parts = max(len(cover(range(*share), ranks)) for share in shares)
    gradients_bytes = slots * trained_bytes + waiting + gathered.gradients_bytes
    added_there = devices.memory_bytes is None or are_added_on_device(
        trained_bytes, count_held_bytes(states, 1, None), devices.memory_bytes - 2 * measures.parameters_bytes
    )
    is_copied = recipe.task == "preference" and recipe.lora is None
    microbatch_s = recipe.batch.microbatch * _count_sample_tokens(recipe) / tokens_per_s
    inner_bytes = largest * gathered.traffic_bytes
    sending_s = (largest_bytes + inner_bytes) / request.bandwidth_bytes_per_s
    step_s = largest * microbatch_s + sending_s + between.largest_bytes / request.nodes.link_bytes_per_s
    plan = SizePlan(
        workers=workers,
        microbatches=largest,
        parameters_bytes=measures.parameters_bytes * (2 if is_copied else 1) + gathered.parameters_bytes,
        gradients_bytes=gradients_bytes,
        optimizer_bytes=count_held_bytes(states, workers, most_copies),
        activations_bytes=_count_activations(recipe, measures),
        gpu_gradients_bytes=gradients_bytes
        if added_there
        else trained_bytes + measures.largest_bytes + gathered.gradients_bytes,
        host_bytes=parts * trained_bytes + trained_bytes if added_there else gradients_bytes + trained_bytes,
        fits=None,
        traffic_bytes=processes
        * (
            between.total_bytes + sum(inside[count].total_bytes for count in on_nodes) + workers * inner_bytes
        ),
        largest_traffic_bytes=largest_bytes + inner_bytes,
        nodes=len(on_nodes),
        node_traffic_bytes=between.largest_bytes,
        step_s=step_s,
        tokens_per_s=recipe.batch.size * _count_sample_tokens(recipe) / step_s,
    )
    if recipe.training.rounds is not None:
        plan = plan_round(request, recipe.training.rounds, plan, measures.sections, microbatch_s)
    if devices.memory_bytes is None:
        return plan
    return msgspec.structs.replace(plan, fits=plan.gpu_bytes <= devices.memory_bytes)


class GatheredMemory(msgspec.Struct, frozen=True):
    """What the processes of a worker gather and exchange to compute a microbatch each; 0 for one process.

    Args:
        parameters_bytes: of the parameters that are whole at the same time.
        gradients_bytes: of the whole gradients before their sum is divided, with the buffers of the exchange.
        traffic_bytes: that a process receives: parameters for every pass, and gradients.
    """

    parameters_bytes: int = 0
    gradients_bytes: int = 0
    traffic_bytes: int = 0


def count_gathered(measures: ModelMeasures, processes: int, passes: int) -> GatheredMemory:
    """Return what FSDP gathers of a model.

    Parameters outside the layers, such as embeddings, stay whole through both passes, and their gradients
    until the end. Of the layers one computes, and the next one is being gathered. Gradients are copied for
    the exchange, and received.

    Args:
        passes: forward and backward passes, for each of which the parameters are gathered.
    """
    if processes == 1:
        return GatheredMemory()
    outer, layer = measures.outer_bytes, measures.layer_bytes
    outer_trained, layer_trained = measures.outer_trained_bytes, measures.layer_trained_bytes
    trained_bytes = sum(elements * size for elements, size in measures.sections)
    traffic_bytes = passes * measures.parameters_bytes + trained_bytes
    return GatheredMemory(
        parameters_bytes=outer + 2 * layer,
        gradients_bytes=max(outer_trained + 3 * layer_trained, 3 * outer_trained - 2 * layer),
        traffic_bytes=traffic_bytes * (processes - 1) // processes,
    )


def _count_activations(recipe: Recipe, measures: ModelMeasures) -> int:
    training = recipe.training
    element_bytes = 2 if training.autocast else ELEMENT_BYTES[recipe.model.dtype]
    memory = estimate_activations(
        measures.shape,
        sequences=recipe.batch.microbatch * (2 if recipe.task == "preference" else 1),
        context=recipe.batch.context,
        element_bytes=element_bytes,
        recompute=training.recompute_activations,
    )
    # Autocast keeps a copy of the weights in its own type.
    whole = measures.parameters
    if recipe.workers.processes > 1:
        whole = (measures.outer_bytes + measures.layer_bytes) // ELEMENT_BYTES[recipe.model.dtype]
    copies = 2 * whole if training.autocast and recipe.model.dtype == "float32" else 0
    return memory.layers_bytes + memory.logits_bytes + copies


def _count_sample_tokens(recipe: Recipe) -> int:
    """Return the most tokens of a sample; a preference pair has two sequences."""
    return recipe.batch.context * (2 if recipe.task == "preference" else 1)


def _count_flops(recipe: Recipe, measures: ModelMeasures) -> float:
    flops = count_flops(
        measures.shape,
        measures.computed,
        measures.computed_trained,
        recipe.batch.context,
        recompute=recipe.training.recompute_activations,
    )
    if recipe.task == "preference":
        # One more forward pass, of the reference.
        flops += (
            2.0 * measures.computed
            + 4.0 * measures.shape.layers * measures.shape.queries * recipe.batch.context
        )
    return flops


def main() -> int:
    """Print the plan that the first argument asks for."""
    request = msgspec.json.decode(sys.argv[1], type=PlanRequest)
    return print_answer(lambda: plan_recipe(request))


if __name__ == "__main__":
    sys.exit(main())
