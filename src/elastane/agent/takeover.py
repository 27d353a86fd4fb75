"""The decision of a node's agent to start the coordinator of the next term. Pure.

No node is the head of a run. While the coordinator is silent, training continues. So the agents have time to
make sure that it is silent for all of them: a coordinator that another agent still hears would lose its term
without need (a *pre-vote*, as in Raft: Ongaro, "Consensus: Bridging Theory and Practice", section 9.6).
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from elastane.api.membership import SILENCE_S, NodeName, WorkerId
from elastane.claims.history import list_generations
from elastane.claims.records import HeldSlot

UNSEEN_S = 20.0
"""How long a node without which the run has gone on looks for signs that the run still goes on."""

TURN_S = 0.5
"""How long each node waits for the one before it, so that usually one of them claims the next term."""


@dataclass(frozen=True, slots=True)
class SilenceView:
    """The state of an agent that does not hear the coordinator.

    Args:
        node: its node.
        silent_s: how long it has not heard the coordinator.
        answers: for each other node of the run the seconds since its agent heard the coordinator; None: it
            did not answer.
        coordinator_node: the node of the silent coordinator.
        left_out: the run has gone on without the workers of this node, see `is_left_out`.
        unseen_s: how long this agent has seen no sign of a coordinator in the run directory either.
    """

    node: NodeName
    silent_s: float
    answers: Mapping[NodeName, float | None]
    coordinator_node: NodeName
    left_out: bool = False
    unseen_s: float = 0.0


@dataclass(frozen=True, slots=True)
class TakeoverDecision:
    """Whether this node's coordinator takes over now, and the reason."""

    now: bool
    why: str


def decide_takeover(view: SilenceView) -> TakeoverDecision:
    """Decide whether this node starts the next term now.

    The coordinator's own node has the first turn, then come the others by name. Nodes that do not answer have
    no turn, except the coordinator's: the network may have parted the two, and then it goes on. A node that
    was left out has its turn only if nothing is left of the run: then it records the loss.
    """
    hearing = sorted(
        node for node, heard_s in view.answers.items() if heard_s is not None and heard_s < SILENCE_S
    )
    if view.silent_s < SILENCE_S:
        return TakeoverDecision(now=False, why=f"the coordinator was heard {view.silent_s:.1f} s ago")
    if view.left_out and view.unseen_s < UNSEEN_S:
        return TakeoverDecision(now=False, why="the run has gone on without this node")
    if hearing:
        return TakeoverDecision(now=False, why=f"node {hearing[0] or 'without a name'} hears the coordinator")
    answering = {node for node, heard_s in view.answers.items() if heard_s is not None}
    order = sorted(
        answering | {view.node, view.coordinator_node},
        key=lambda node: (node != view.coordinator_node, node),
    )
    turn = order.index(view.node)
    if view.silent_s < SILENCE_S + turn * TURN_S:
        return TakeoverDecision(now=False, why=f"node {order[0] or 'without a name'} has its turn before")
    alone = "" if answering else "; no other node answers"
    return TakeoverDecision(now=True, why=f"no node heard the coordinator for {view.silent_s:.1f} s{alone}")


def is_left_out(claimed: Sequence[HeldSlot], workers: Collection[WorkerId]) -> bool:
    """Return whether the run has gone on without the workers of this node.

    The coordinator is silent here because it has lost this node, so it is in charge for others.

    Args:
        claimed: the slots of the claim list that were claimed since the coordinator was heard.
        workers: the living workers of this node.
    """
    generations = list_generations(claimed)
    return bool(generations and workers) and set(generations[-1].members).isdisjoint(workers)
