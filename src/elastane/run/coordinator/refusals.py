"""Which requests a run can meet, and why not: one table for trainings and unmodified scripts. Pure."""

from collections.abc import Collection
from dataclasses import dataclass

from elastane.run.coordinator.nodes import describe_node
from elastane.run.nouns.control import (
    Ask,
    AskCheckpoint,
    AskDrain,
    AskDrainNode,
    AskEvict,
    AskResize,
    AskStatus,
    AskStop,
)
from elastane.run.nouns.membership import FIRST_NODE_WORD, NodeName, WorkerId
from elastane.run.nouns.spec import RunSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class Changeable:
    """What decides whether a request can be met.

    Args:
        over: why the run is over; empty: it is not.
        ending: why nothing can be changed any more; empty: it can.
        target: the number of workers that was requested last; None: not known yet.
        workers: those that may be asked to leave, in the order in which they are shown.
        draining: those that were asked to leave.
        by_hand: whether a user has set the target.
        virtual_ranks: the most workers that can share the work; None: not known.
        no_checkpoint: why no checkpoint can be requested; empty: one can.
        no_node: why no machine can leave; empty: one can.
        nodes: the machines.
        leaving_nodes: those that leave.
    """

    over: str = ""
    ending: str = ""
    target: int | None
    workers: tuple[WorkerId, ...]
    draining: Collection[WorkerId]
    by_hand: bool
    virtual_ranks: int | None = None
    no_checkpoint: str = ""
    no_node: str = ""
    nodes: Collection[NodeName] = ()
    leaving_nodes: Collection[NodeName] = ()


def find_refusal(run: Changeable, spec: RunSpec, ask: Ask) -> str:
    """Return why a request cannot be met; empty if it can."""
    if isinstance(ask, AskStatus | AskEvict):
        return ""
    if run.over:
        return f"the run is over: {run.over}"
    if isinstance(ask, AskStop):
        return ""
    if run.ending:
        return f"the run is ending: {run.ending}, so nothing can be changed any more"
    if run.target is None:
        return "the coordinator has just started and does not know its workers yet; try again"
    match ask:
        case AskCheckpoint():
            return run.no_checkpoint
        case AskDrain(worker=worker):
            return _find_drain_refusal(run, worker, run.target)
        case AskDrainNode(node=node):
            return run.no_node or _find_node_refusal(run, node)
        case AskResize():
            return _find_resize_refusal(run, spec, ask)


def _find_resize_refusal(run: Changeable, spec: RunSpec, ask: AskResize) -> str:
    if ask.unless_by_hand and run.by_hand:
        return "a user has set its number of workers"
    low, high = ask.limits or (spec.min_workers, spec.max_workers)
    if not low <= ask.workers <= high:
        return f"{ask.workers} workers are outside this run's limits: choose {low} to {high}"
    if spec.sizes and ask.limits is None and ask.workers not in spec.sizes:
        return f"{ask.workers} is not a legal size of this run: choose {', '.join(map(str, spec.sizes))}"
    if run.virtual_ranks is not None and ask.workers > run.virtual_ranks:
        return (
            f"{ask.workers} workers cannot share {run.virtual_ranks} virtual ranks: choose at most "
            f"{run.virtual_ranks}"
        )
    return ""


def _find_drain_refusal(run: Changeable, worker: WorkerId, target: int) -> str:
    if worker not in run.workers:
        present = ", ".join(map(str, run.workers))
        return f"no worker {worker} in this run; running: {present or 'none'}"
    if target <= 1 and worker not in run.draining:
        return f"worker {worker} cannot leave: a run needs one worker; to end the run, use `elastane stop`"
    return ""


def _find_node_refusal(run: Changeable, node: NodeName) -> str:
    if node not in run.nodes:
        names = ", ".join(name or FIRST_NODE_WORD for name in sorted(run.nodes))
        return f"no machine {node or FIRST_NODE_WORD} in this run; taking part: {names or 'none'}"
    if node not in run.leaving_nodes and {*run.nodes} <= {*run.leaving_nodes, node}:
        return (
            f"{describe_node(node)} cannot leave: no other machine stays; to end the run, use `elastane stop`"
        )
    return ""
