"""``elastane node``: the machines."""

from typing import Annotated, Literal

import typer

from elastane.cli.operators.documents import group
from elastane.cli.operators.quantities import local
from elastane.cli.operators.tables import print_table
from elastane.cli.verb import AsJson, print_json, talk, verb
from elastane.client.context import connect

NodeName = Annotated[str, typer.Argument(metavar="NODE", help="Its name.", show_default=False)]
Why = Annotated[str, typer.Option("--why", metavar="TEXT", help="For people.", show_default=False)]

STATES = {"use": "in use", "drain": "drained", "failed": "failed"}


def listing(as_json: AsJson = False) -> None:
    """Show every node that an engine has seen."""
    with connect() as cluster:
        found = cluster.nodes()
    if as_json:
        print_json(found)
        return
    print_table(
        ("node", "pool", "devices", "state", "seen", "goes", "why"),
        [
            (
                one.name,
                one.pool,
                str(one.devices),
                STATES[one.wanted],
                local(one.heard_s),
                local(one.gone_at_s),
                one.why,
            )
            for one in found
        ],
        numbers=("devices",),
        empty="no engine has seen a node; pools have the devices that are declared",
    )


def drain(node: NodeName, why: Why = "", as_json: AsJson = False) -> None:
    """Let jobs leave NODE without losing a step; nothing new is placed there."""
    _want(node, "drain", why, as_json=as_json)


def fail(node: NodeName, why: Why = "", as_json: AsJson = False) -> None:
    """Count the devices of NODE as gone, at once."""
    _want(node, "fail", why, as_json=as_json)


def use(node: NodeName, as_json: AsJson = False) -> None:
    """Use NODE again."""
    _want(node, "use", "", as_json=as_json)


def forget(node: NodeName, as_json: AsJson = False) -> None:
    """Forget NODE, which no engine sees any more."""
    with connect() as cluster:
        cluster.forget_node(node)
    if as_json:
        print_json({"node": node, "forgotten": True})
        return
    talk().print(f"node {node} is forgotten", markup=False)


def _want(name: str, what: Literal["drain", "fail", "use"], why: str, *, as_json: bool) -> None:
    with connect() as cluster:
        after = cluster.set_node(name, what, why)
    if as_json:
        print_json(after)
        return
    words = f"node {after.name} is {STATES[after.wanted]}: {after.devices} devices of {after.pool}"
    talk().print(words + (f", {after.why}" if after.why else ""), markup=False)


node = group(
    "node",
    """
Nodes: the machines that engines have seen.

  $ elastane node drain n17 --why "new disk"   [dim]jobs leave, no step is lost[/dim]
  $ elastane node use n17
""",
)
node.command("list")(verb(listing))
node.command("drain")(verb(drain))
node.command("fail")(verb(fail))
node.command("use")(verb(use))
node.command("forget")(verb(forget))
