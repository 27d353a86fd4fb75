"""The faults of whole nodes, of the networks between them, and of the coordinators' claim list."""

from typing import TypeAlias

import msgspec


class KillNode(msgspec.Struct, frozen=True, tag=True):
    """The agent of a node dies, and its workers and its coordinator with it.

    Args:
        at_s: the time of the death.
        which: selects a living node; the last living one never dies.
        silent: the power fails, and no connection closes.
    """

    at_s: float
    which: int
    silent: bool = True


class PartNodes(msgspec.Struct, frozen=True, tag=True):
    """Some nodes and all others cannot reach each other.

    Args:
        at_s: the beginning.
        side: the indexes of the nodes on one side; the first node is 0.
        for_s: the length.
        control: connections of agents and workers to coordinators, and between agents, are cut.
        mesh: connections between workers are cut.
        one_way: only what the side sends is lost.
        short: what connections between workers carry is late, but they outlive the partition, as TCP does
            when it is shorter than half a minute.
    """

    at_s: float
    side: tuple[int, ...]
    for_s: float
    control: bool = True
    mesh: bool = True
    one_way: bool = False
    short: bool = False


class PauseCoordinator(msgspec.Struct, frozen=True, tag=True):
    """The newest coordinator is stopped for a while; then it handles the messages that have waited."""

    at_s: float
    for_s: float


class HideClaims(msgspec.Struct, frozen=True, tag=True):
    """The claim list does not answer for a while.

    Args:
        at_s: the beginning.
        for_s: the length.
        forgetful: this share of its later answers is lost.
        nodes: the indexes of the nodes that it does not answer; empty: it answers no node.
    """

    at_s: float
    for_s: float
    forgetful: float = 0.0
    nodes: tuple[int, ...] = ()


class SlowClaims(msgspec.Struct, frozen=True, tag=True):
    """The claim list is slow for a while: some claims take effect long after their callers have given up."""

    at_s: float
    for_s: float


class AskOneSide(msgspec.Struct, frozen=True, tag=True):
    """A user asks the coordinator on a node, if one lives there, to stop the run."""

    at_s: float
    node: int


class LeaveNode(msgspec.Struct, frozen=True, tag=True):
    """A user lets a node leave the run, and perhaps join again once it has left.

    Args:
        at_s: the time of the request.
        which: selects a living node that is not leaving; the last one never leaves.
        drained: the coordinator is asked, not the node's own agent.
        back_s: how long after its leave the node joins again; None: never.
    """

    at_s: float
    which: int
    drained: bool = False
    back_s: float | None = None


NodeFault: TypeAlias = (
    KillNode | PartNodes | PauseCoordinator | HideClaims | SlowClaims | AskOneSide | LeaveNode
)
