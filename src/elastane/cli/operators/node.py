"""``elastane node``: the machines of the cluster."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated

from elastane.cli.command import AsJson, make_group, print_outcome
from elastane.cli.operators.tables import print_rows
from elastane.cli.options import argument, option
from elastane.cli.timestamps import format_minute
from elastane.cluster.client.context import connect
from elastane.cluster.nouns.pools import Node

if TYPE_CHECKING:
    from elastane.cluster.client.cluster import Cluster

NodeName = Annotated[str, argument("NODE", "Name of the node.")]
Why = Annotated[str, option("TEXT", "A reason, shown in the list of nodes.", "--why")]

STATES = {"use": "in use", "drain": "drained", "failed": "failed"}


def show_nodes(as_json: AsJson = False) -> None:
    """List the nodes that engines have seen."""
    with connect() as cluster:
        found = cluster.nodes.list()
    print_rows(
        found,
        {
            "node": lambda node: node.name,
            "pool": lambda node: node.pool,
            "devices": lambda node: str(node.devices),
            "state": lambda node: STATES[node.wanted],
            "last seen": lambda node: format_minute(node.heard_s),
            "taken away": lambda node: format_minute(node.gone_at_s),
            "reason": lambda node: node.why,
        },
        as_json=as_json,
        numbers=("devices",),
        empty="no engine has seen a node; pools have their declared devices",
    )


def drain_node(node: NodeName, why: Why = "", as_json: AsJson = False) -> None:
    """Let jobs leave NODE without losing a step, and place no new workers there."""
    _change(lambda cluster: cluster.nodes.drain(node, why), as_json=as_json)


def fail_node(node: NodeName, why: Why = "", as_json: AsJson = False) -> None:
    """Treat the devices of NODE as lost, at once."""
    _change(lambda cluster: cluster.nodes.fail(node, why), as_json=as_json)


def use_node(node: NodeName, as_json: AsJson = False) -> None:
    """Use NODE again after a drain or a failure."""
    _change(lambda cluster: cluster.nodes.use(node), as_json=as_json)


def remove_node(node: NodeName, as_json: AsJson = False) -> None:
    """Remove NODE from the list, if no engine has seen it for five minutes."""
    with connect() as cluster:
        cluster.nodes.forget(node)
    print_outcome({"node": node, "forgotten": True}, f"node {node} removed from the list", as_json=as_json)


def _change(request: Callable[["Cluster"], Node], *, as_json: bool) -> None:
    with connect() as cluster:
        after = request(cluster)
    words = f"node {after.name} is {STATES[after.wanted]}: {after.devices} devices of {after.pool}"
    print_outcome(after, words + (f", {after.why}" if after.why else ""), as_json=as_json)


node = make_group(
    "node",
    """
List, drain and restore nodes: the machines that engines have seen.

  $ elastane node drain n17 --why "new disk"   [dim]jobs leave, no step is lost[/dim]
  $ elastane node use n17
""",
    {"list": show_nodes, "drain": drain_node, "fail": fail_node, "use": use_node, "forget": remove_node},
)
