"""The rule by which the agents of several nodes agree on the one that starts the next coordinator."""

from collections.abc import Mapping

from elastane.api.membership import NodeName

SILENCE_S = 3.0
TURN_S = 0.5


def is_turn(
    node: NodeName, silent_s: float, answers: Mapping[NodeName, float], coordinator_node: NodeName
) -> bool:
    """Return whether the agent of a node starts the next term now.

    Args:
        node: its node.
        silent_s: how long it has not heard the coordinator.
        answers: the same of the agents that answer it (a pre-vote).
        coordinator_node: the node of the silent coordinator, which has the first turn.
    """
    if silent_s < SILENCE_S or any(other_s < SILENCE_S for other_s in answers.values()):
        return False
    order = sorted([node, *answers], key=lambda name: (name != coordinator_node, name))
    return silent_s >= SILENCE_S + order.index(node) * TURN_S
