"""The plan of a recipe: memory, traffic and speed at each number of workers. Values, and their words."""

import re

import msgspec

from elastane.common.errors import BadInput
from elastane.common.field_checks import MOST_WORKERS
from elastane.integrations.recipes.recipe import Recipe

UNITS = {"": 1, "K": 10**3, "M": 10**6, "G": 10**9, "T": 10**12, "KI": 1 << 10, "MI": 1 << 20, "GI": 1 << 30}
DEVICES = re.compile(r"(\d{1,7})(?::(\d{1,6}(?:\.\d{1,3})?)([KMGT]?I?)B?)?", re.IGNORECASE)
LINK = re.compile(r"(\d{1,7}(?:\.\d{1,3})?)([KMGT])bit(?:/s)?", re.IGNORECASE)
THREE_DIGITS = 999.5
"""The first number that three digits cannot show."""


class DeviceGroup(msgspec.Struct, frozen=True):
    """Equal devices, one for each process; ``memory_bytes`` of each GPU, None: not given."""

    count: int
    memory_bytes: int | None = None


class NodeGroup(msgspec.Struct, frozen=True):
    """Equal nodes with the devices; ``link_bytes_per_s`` of each, to the others, in each direction."""

    count: int = 1
    link_bytes_per_s: float = 1.25e9

    def spread(self, workers: int, devices: int) -> tuple[int, ...]:
        """Return the workers on each node that has any; a run fills one node after the other."""
        each = devices // self.count
        full, rest = divmod(workers, each)
        return (each,) * full + ((rest,) if rest else ())


class PlanRequest(msgspec.Struct, frozen=True, kw_only=True):
    """The question that a plan answers.

    Args:
        recipe: resolved and checked.
        devices: at most as many workers are planned.
        flops_per_s: the speed of one process; None: measure a small model on this machine.
        bandwidth_bytes_per_s: of one process, to the others of its node.
        nodes: they have the devices.
    """

    recipe: Recipe
    devices: DeviceGroup
    flops_per_s: float | None = None
    bandwidth_bytes_per_s: float = 1.25e9
    nodes: NodeGroup = NodeGroup()


class SizePlan(msgspec.Struct, frozen=True, kw_only=True):
    """What a run needs and gives at one number of workers. All memory is that of one process of a worker.

    Args:
        microbatches: the most that a process computes in a step.
        parameters_bytes: the model, with frozen parts and the copy of it that preferences compare with.
        gradients_bytes: partial sums, and the gradients of the pass that runs.
        optimizer_bytes: the state of AdamW in the blocks that a process holds.
        activations_bytes: of one microbatch, with its logits.
        gpu_gradients_bytes: the same on a GPU: without partial sums, if it lacks the memory for them.
        host_bytes: beside a GPU: partial sums, and the mirror of the trained parameters.
        fits: the memory of a GPU suffices; None: it was not given.
        traffic_bytes: of a step, between all processes.
        largest_traffic_bytes: the most that one process exchanges in a step with the others of its node.
        nodes: the number of nodes that have a worker.
        node_traffic_bytes: the most that one node sends to the others, or receives, in a step.
        step_s: the expected time of a step.
        tokens_per_s: the expected speed of the run.
        legal: the recipe allows this number of workers; see `mark_legal_sizes`.
    """

    workers: int
    microbatches: int
    parameters_bytes: int
    gradients_bytes: int
    optimizer_bytes: int
    activations_bytes: int
    gpu_gradients_bytes: int
    host_bytes: int
    fits: bool | None
    traffic_bytes: int
    largest_traffic_bytes: int
    nodes: int
    node_traffic_bytes: int
    step_s: float
    tokens_per_s: float
    legal: bool = True

    @property
    def memory_bytes(self) -> int:
        """All memory of a process on a CPU but that of Python and its libraries."""
        return self.parameters_bytes + self.gradients_bytes + self.optimizer_bytes + self.activations_bytes

    @property
    def gpu_bytes(self) -> int:
        """The memory on the GPU of a process that has one."""
        gradients = self.gpu_gradients_bytes
        return self.parameters_bytes + gradients + self.optimizer_bytes + self.activations_bytes


class RecipePlan(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind", tag="planned"):
    """The plan of a recipe, for the devices of the request.

    Args:
        trained: the parameters that the run trains.
        flops_per_token: of training.
        flops_per_s: of one process, given or, if ``is_measured``, measured on this machine.
        bandwidth_bytes_per_s: between two processes of a node.
        sizes: the plan of each number of workers, ascending.
        processes: of each worker.
        inner_steps: of a round; 0: the recipe has no rounds. A step of the plan is a round then.
        delay: rounds exchange under the inner steps of the next one.
    """

    parameters: int
    trained: int
    tokens_per_step: int
    flops_per_token: float
    flops_per_s: float
    is_measured: bool
    bandwidth_bytes_per_s: float
    nodes: NodeGroup
    devices: DeviceGroup
    sizes: tuple[SizePlan, ...]
    processes: int = 1
    inner_steps: int = 0
    delay: int = 0


HEADINGS = (
    "workers", "microbatches", "model", "gradients", "optimizer", "activations", "on a CPU", "on a GPU",
    "its host", "traffic/step", "step", "tokens/s",
)  # fmt: skip

MARK = "*"
"""Stands before a number of workers that the recipe does not allow."""
NODE_HEADINGS = ("nodes", "leaves a node", "on its link")
"""The last columns of a plan for several nodes."""


def parse_devices(text: str) -> DeviceGroup:
    """Return the devices of ``8`` or ``8:80GB``."""
    match = DEVICES.fullmatch(text.strip())
    unit = (match[3] or "").upper() if match else ""
    if match is None or not 1 <= int(match[1]) <= MOST_WORKERS or unit not in UNITS:
        raise BadInput(
            f"invalid devices: {text!r}",
            means="a plan is for a number of equal devices, each perhaps with its memory",
            do="write --devices 8, or --devices 8:80GB",
        )
    return DeviceGroup(int(match[1]), int(float(match[2]) * UNITS[unit]) if match[2] else None)


def parse_nodes(count: int, link: str | None, devices: DeviceGroup) -> NodeGroup:
    """Return nodes that have all devices; ``link`` is their speed, such as ``10gbit``, if it was typed."""
    if count < 1 or devices.count % count:
        raise BadInput(
            f"invalid number of nodes: {count}, with {devices.count} devices",
            means="a plan is for equal nodes, and --devices is the number of all their devices together",
            do=f"write for example --nodes 2 --devices {2 * devices.count}",
        )
    if link is None:
        return NodeGroup(count)
    match = LINK.fullmatch(link.strip())
    speed = float(match[1]) * UNITS[match[2].upper()] / 8 if match else 0.0
    if count == 1 or not speed:
        raise BadInput(
            f"invalid link: {link!r}" if count > 1 else "--link needs --nodes",
            means="it is the speed of the network of a node, in bits per second",
            do="write for example --nodes 2 --link 10gbit",
        )
    return NodeGroup(count, speed)


def list_headings(plan: RecipePlan) -> tuple[str, ...]:
    headings = HEADINGS if plan.nodes.count == 1 else HEADINGS + NODE_HEADINGS
    words = {"traffic/step": "traffic/round", "step": "round"} if plan.inner_steps else {}
    return tuple(words.get(heading, heading) for heading in headings)


def list_sizes(devices: int, virtual_ranks: int, legal: tuple[int, ...]) -> tuple[int, ...]:
    """Return the legal numbers of workers to plan: powers of two, and the largest that is possible."""
    most = min(devices, virtual_ranks)
    if most < 1:
        return ()
    if legal:
        return tuple(size for size in sorted(set(legal)) if size <= most)
    powers = [1 << power for power in range(most.bit_length()) if 1 << power <= most]
    return tuple(sorted({*powers, most}))


def mark_legal_sizes(plan: RecipePlan, recipe: Recipe) -> RecipePlan:
    """Return the plan of a recipe, in which each size says whether the recipe allows it."""
    low, high = find_limits(recipe)
    legal = recipe.workers.sizes or range(low, high + 1)
    marked = tuple(msgspec.structs.replace(size, legal=size.workers in legal) for size in plan.sizes)
    return msgspec.structs.replace(plan, sizes=marked)


def find_limits(recipe: Recipe) -> tuple[int, int]:
    """Return the fewest and the most workers of a recipe."""
    return recipe.workers.min, recipe.workers.max or recipe.most_workers


def describe_illegal_sizes(plan: RecipePlan, recipe: Recipe) -> list[str]:
    """Return a sentence that explains the marked sizes, if there are any."""
    if all(size.legal for size in plan.sizes):
        return []
    low, high = find_limits(recipe)
    return [f"{MARK} The recipe does not run so: it has {low} to {high} workers (workers.min, workers.max)."]


def build_plan_rows(plan: RecipePlan) -> list[tuple[str, ...]]:
    """Return the cells of a table with the headings of `list_headings`, a row for each number of workers."""
    words = {True: "", False: " (too much)", None: ""}
    return [
        (
            f"{'' if size.legal else f'{MARK} '}{size.workers}",
            str(size.microbatches),
            format_bytes(size.parameters_bytes),
            format_bytes(size.gradients_bytes),
            format_bytes(size.optimizer_bytes),
            format_bytes(size.activations_bytes),
            format_bytes(size.memory_bytes),
            format_bytes(size.gpu_bytes) + words[size.fits],
            format_bytes(size.host_bytes),
            format_bytes(size.traffic_bytes),
            f"{size.step_s:,.3g} s",
            f"{size.tokens_per_s:,.0f}",
            *(_describe_link(plan, size) if plan.nodes.count > 1 else ()),
        )
        for size in plan.sizes
    ]


def _describe_link(plan: RecipePlan, size: SizePlan) -> tuple[str, ...]:
    seconds = size.node_traffic_bytes / plan.nodes.link_bytes_per_s
    return str(size.nodes), format_bytes(size.node_traffic_bytes), f"{seconds:,.3g} s"


def describe_plan(plan: RecipePlan) -> list[str]:
    """Return sentences that say what the plan assumes."""
    trained = "" if plan.trained == plan.parameters else f", {plan.trained:,} of them trained"
    origin = "measured on this machine with a small model" if plan.is_measured else "as given"
    network = format_bytes(int(plan.bandwidth_bytes_per_s))
    unit, units = ("worker", "workers") if plan.processes == 1 else ("process", "processes")
    sentences = [
        f"Model: {plan.parameters:,} parameters{trained}; {plan.flops_per_token:.3g} FLOPs per token.",
        _describe_step(plan),
        f"{unit.capitalize()}: {plan.flops_per_s:.3g} FLOP/s, {origin}; {network}/s between two {units}.",
        f"Memory: of one {unit}, without Python and its libraries.",
        "GPU: its host has a mirror of the trained weights, and partial sums for other workers.",
    ]
    if plan.processes > 1:
        sentences.append(
            f"Processes: {plan.processes} for each worker, which divide the model; on CPUs only so far. "
            "While a worker starts, each of them has the whole model."
        )
    if plan.nodes.count > 1:
        each = plan.devices.count // plan.nodes.count
        speed = 8 * plan.nodes.link_bytes_per_s / 1e9
        least = (
            "if each computes one group of virtual ranks (training.rounds.group)."
            if plan.inner_steps
            else "2 (N-1)/N of the gradients, if each computes the same power of two of microbatches."
        )
        sentences.append(
            f"Nodes: {plan.nodes.count} of {each} device{'s' * (each > 1)}, filled one after the other; "
            f"{speed:.3g} Gbit/s in each direction. What leaves or enters the busiest of N is least, "
            f"{least}"
        )
    if all(size.fits is False for size in plan.sizes):
        sentences.append(
            "No number of workers fits. It takes less memory with a smaller batch.context, with an adapter "
            "(lora), with workers.processes, or with workers.copies: 2."
        )
    return sentences


def _describe_step(plan: RecipePlan) -> str:
    tokens = f"{plan.tokens_per_step:,} tokens"
    if not plan.inner_steps:
        return f"Step: {tokens}. It computes first and sends then; a real one overlaps both."
    order = "sends while it computes" if plan.delay else "computes first and sends then"
    return f"Round: {plan.inner_steps} inner steps, {tokens}. It {order}. A node is a site."


def format_bytes(size: int) -> str:
    """Return a size with three digits, as ``1.23 GB``."""
    value = float(size)
    for unit in ("B", "kB", "MB", "GB"):
        if value < THREE_DIGITS:
            return f"{value:.3g} {unit}"
        value /= 1000
    return f"{value:,.3g} TB" if value < THREE_DIGITS else f"{value:,.0f} TB"
