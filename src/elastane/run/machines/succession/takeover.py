"""The decision of a node's agent to start the coordinator of the next term. Pure.

No node is the head of a run. While the coordinator is silent, training continues. So the agents have time to
make sure that it is silent for all of them: a coordinator that another agent still hears would lose its term
without need (a *pre-vote*, as in Raft: Ongaro, "Consensus: Bridging Theory and Practice", section 9.6).
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from math import inf
from typing import Annotated, TypeAlias

import msgspec

from elastane.common.bounds import Count
from elastane.run.machines.claims.records import GenerationClaim
from elastane.run.nouns.membership import NodeName, WorkerId
from elastane.run.nouns.silence_limits import SilenceLimits


class CoordinatorHeard(msgspec.Struct, frozen=True):
    """The answer of an agent to another one.

    Args:
        heard_s: how many seconds ago it heard the coordinator, or knew that another one takes charge.
        workers: how many workers live on its node.
    """

    heard_s: Annotated[float, msgspec.Meta(ge=0)]
    workers: Count = 0


Answers: TypeAlias = Mapping[NodeName, CoordinatorHeard | None]
"""The answer of each node's agent; None: it gave none."""


@dataclass(frozen=True, slots=True)
class SilenceView:
    """The state of an agent that does not hear the coordinator.

    Args:
        silent_s: how long no coordinator has answered, although one had time to.
        coordinator_node: the node of the silent coordinator.
        left_out: the run may have gone on without the workers of this node, see `is_left_out`.
        unseen_s: how long this agent has seen no sign of a coordinator in the run directory either.
        renewed_s: how long ago this agent has seen the coordinator renew its sign there; infinite: never.
        workers: how many workers live on this node.
        total: how many workers the run should have.
        is_new: this node has joined and has had no order yet, so its coordinator could not continue the run.
    """

    node: NodeName
    silent_s: float
    answers: Answers
    coordinator_node: NodeName
    limits: SilenceLimits
    left_out: bool = False
    unseen_s: float = 0.0
    renewed_s: float = inf
    workers: int = 0
    total: int = 0
    is_new: bool = False


@dataclass(frozen=True, slots=True)
class TakeoverDecision:
    """Whether this node's coordinator takes over now, and the reason."""

    now: bool
    why: str


def decide_takeover(view: SilenceView) -> TakeoverDecision:
    """Decide whether this node starts the next term now.

    The coordinator's own node has the first turn, then come the others by name. Nodes that do not answer have
    no turn, except the coordinator's if no more than half of the workers are here: perhaps the network has
    parted the two, and then its part goes on. A node that was left out has its turn only if nothing is left
    of the run: then it records the loss. Nodes with less than half of the workers wait longer. Those without
    more than half leave a coordinator in charge that renews its sign in the run directory: only the network
    parts them from it and the others.
    """
    limits = view.limits
    answering = {node: answer for node, answer in view.answers.items() if answer is not None}
    hearing = sorted(node for node, answer in answering.items() if answer.heard_s < limits.limit_s)
    if view.silent_s < limits.limit_s:
        return TakeoverDecision(now=False, why=f"the coordinator was heard {view.silent_s:.1f} s ago")
    if view.is_new:
        return TakeoverDecision(now=False, why="this node has had no order of the run yet")
    if view.left_out and view.unseen_s < limits.unseen_s:
        return TakeoverDecision(now=False, why="the run has gone on without this node")
    if hearing:
        return TakeoverDecision(now=False, why=f"node {hearing[0] or 'without a name'} hears a coordinator")
    present = view.workers + sum(answer.workers for answer in answering.values())
    has_most = 2 * present > view.total
    waiting = {*answering, view.node} | (set() if has_most else {view.coordinator_node})
    order = sorted(waiting, key=lambda node: (node != view.coordinator_node, node))
    turn = order.index(view.node)
    is_renewed = view.renewed_s < limits.limit_s and view.silent_s < limits.unseen_s
    if not has_most and is_renewed:
        return TakeoverDecision(now=False, why="the coordinator is at work where this node does not hear it")
    turn_s = limits.limit_s + turn * limits.turn_s
    wait_s = limits.minority_s if 2 * present < view.total else 0.0
    # By the node that heard the coordinator last, so that the turns of two nodes never begin together.
    silent_s = min(view.silent_s, *(answer.heard_s for answer in answering.values()), inf)
    if silent_s < turn_s + wait_s:
        if wait_s and silent_s >= turn_s:
            why = f"only {present} of {view.total} workers are here, and the others may go on"
            return TakeoverDecision(now=False, why=why)
        return TakeoverDecision(now=False, why=f"node {order[0] or 'without a name'} has its turn before")
    alone = "" if answering else "; no other node answers"
    return TakeoverDecision(now=True, why=f"no node heard the coordinator for {view.silent_s:.1f} s{alone}")


def is_left_out(generations: Sequence[GenerationClaim], workers: Collection[WorkerId]) -> bool:
    """Return whether the run has gone on without the workers of this node.

    The coordinator is silent here because it has lost this node, so it is in charge for others.

    Args:
        generations: those that were claimed since the coordinator was heard, in order.
        workers: the living workers of this node.
    """
    return bool(generations and workers) and set(generations[-1].members).isdisjoint(workers)
