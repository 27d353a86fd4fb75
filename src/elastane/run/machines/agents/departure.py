"""The decisions of a machine that a user asks to leave a run; `node_agent` beside this acts on them."""

from collections.abc import Collection

from elastane.common.exit_codes import ExitCode
from elastane.run.nouns.control import RunOver
from elastane.run.nouns.membership import NodeAddress, NodeName

LONGEST_LEAVE_S = 10.0
"""How long a machine without workers waits until the run has recorded that it has left."""


def is_last_machine(node: NodeName, nodes: Collection[NodeAddress], *, begins: bool) -> bool:
    """Return whether no other machine takes part in the run, so that its end would be the end of the run.

    Args:
        node: the machine.
        nodes: the machines of the run in the last order of the coordinator; empty: it has sent no order yet.
        begins: the run has begun on this machine; another one is not alone before its first order.
    """
    return all(other.name == node for other in nodes) if nodes else begins


def has_left(*, workers: int, recorded: bool, idle_s: float) -> bool:
    """Return whether a leaving machine has left, so that its agent may end.

    Args:
        workers: the number of its workers that have not ended yet.
        recorded: the run has recorded that the machine has left.
        idle_s: how long the machine has had no worker; a run that does not answer keeps no machine forever.
    """
    return workers == 0 and (recorded or idle_s > LONGEST_LEAVE_S)


def build_farewell(*, without_workers: bool) -> RunOver:
    """Return the outcome for a machine that has left a run that goes on.

    Args:
        without_workers: it has left because it gets no workers.
    """
    if without_workers:
        return RunOver(code=ExitCode.FAILED, why="this machine has left the run, because it gets no workers")
    return RunOver(code=ExitCode.OK, why="this machine has left the run")
