"""``elastane node``: the machines of the cluster."""

from typing import Annotated, Literal

import typer

from elastane.cli.command import AsJson, open_console, print_json, wrap_command
from elastane.cli.operators.declarations import make_group
from elastane.cli.operators.tables import print_table
from elastane.cli.timestamps import format_minute
from elastane.cluster.client.context import connect

NodeName = Annotated[str, typer.Argument(metavar="NODE", help="Name of the node.", show_default=False)]
Why = Annotated[
    str,
    typer.Option("--why", metavar="TEXT", help="A reason, shown in the list of nodes.", show_default=False),
]

STATES = {"use": "in use", "drain": "drained", "failed": "failed"}


def show_nodes(as_json: AsJson = False) -> None:
    """List the nodes that engines have seen."""
    with connect() as cluster:
        found = cluster.nodes()
    if as_json:
        print_json(found)
        return
    print_table(
        ("node", "pool", "devices", "state", "last seen", "taken away", "reason"),
        [
            (
                one.name,
                one.pool,
                str(one.devices),
                STATES[one.wanted],
                format_minute(one.heard_s),
                format_minute(one.gone_at_s),
                one.why,
            )
            for one in found
        ],
        numbers=("devices",),
        empty="no engine has seen a node; pools have their declared devices",
    )


def drain_node(node: NodeName, why: Why = "", as_json: AsJson = False) -> None:
    """Let jobs leave NODE without losing a step, and place no new workers there."""
    _set_state(node, "drain", why, as_json=as_json)


def fail_node(node: NodeName, why: Why = "", as_json: AsJson = False) -> None:
    """Treat the devices of NODE as lost, at once."""
    _set_state(node, "fail", why, as_json=as_json)


def use_node(node: NodeName, as_json: AsJson = False) -> None:
    """Use NODE again after a drain or a failure."""
    _set_state(node, "use", "", as_json=as_json)


def remove_node(node: NodeName, as_json: AsJson = False) -> None:
    """Remove NODE from the list, if no engine has seen it for five minutes."""
    with connect() as cluster:
        cluster.forget_node(node)
    if as_json:
        print_json({"node": node, "forgotten": True})
        return
    open_console().print(f"node {node} removed from the list", markup=False)


def _set_state(name: str, what: Literal["drain", "fail", "use"], why: str, *, as_json: bool) -> None:
    with connect() as cluster:
        after = cluster.set_node(name, what, why)
    if as_json:
        print_json(after)
        return
    words = f"node {after.name} is {STATES[after.wanted]}: {after.devices} devices of {after.pool}"
    open_console().print(words + (f", {after.why}" if after.why else ""), markup=False)


node = make_group(
    "node",
    """
List, drain and restore nodes: the machines that engines have seen.

  $ elastane node drain n17 --why "new disk"   [dim]jobs leave, no step is lost[/dim]
  $ elastane node use n17
""",
)
node.command("list")(wrap_command(show_nodes))
node.command("drain")(wrap_command(drain_node))
node.command("fail")(wrap_command(fail_node))
node.command("use")(wrap_command(use_node))
node.command("forget")(wrap_command(remove_node))
