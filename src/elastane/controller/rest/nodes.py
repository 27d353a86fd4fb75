"""Nodes: list, drain, fail, use again, forget."""

from http import HTTPStatus
from typing import Annotated

from fastapi import APIRouter, Response
from sqlalchemy import Connection

from elastane.api.field_checks import check_remark
from elastane.api.nodes import UNSEEN_S, Node, NodeWanted
from elastane.api.rest import NodeChange, Page
from elastane.controller.access.roles import Target
from elastane.controller.rest.bodies import body, reply, response
from elastane.controller.rest.caller import Asking, Editing, Editor
from elastane.controller.rest.description import says
from elastane.controller.rest.parameters import Name
from elastane.controller.rest.problems import Refusal, missing
from elastane.controller.store import events, nodes
from elastane.controller.store.replies import Reply

router = APIRouter(prefix="/v1/nodes", tags=["nodes"])

Why = Annotated[NodeChange, body(NodeChange, empty=NodeChange())]


@router.get("", **says(Page[Node]))
def get_nodes(caller: Asking) -> Response:
    """List the nodes that engines have seen."""
    caller.must("nodes.read", Target(name="nodes"))
    with caller.reading() as tx:
        return response(reply(Page(items=nodes.list_nodes(tx))))


@router.post("/{node}/drain", **says(Node, takes=NodeChange, optional=True))
def post_node_drain(caller: Editing, node: Name, change: Why) -> Response:
    """Drain a node: jobs leave it without losing a step, and nothing new is placed there."""
    return _change_node(caller, node, "drain", change.why)


@router.post("/{node}/fail", **says(Node, takes=NodeChange, optional=True))
def post_node_fail(caller: Editing, node: Name, change: Why) -> Response:
    """Count the devices of a node as gone at once."""
    return _change_node(caller, node, "failed", change.why)


@router.post("/{node}/use", **says(Node))
def post_node_use(caller: Editing, node: Name) -> Response:
    """Use a node again."""
    return _change_node(caller, node, "use", "")


@router.delete("/{node}", **says(None, status=HTTPStatus.NO_CONTENT))
def delete_node(caller: Editing, node: Name) -> Response:
    """Forget a node that no engine sees any more."""

    def do(tx: Connection) -> Reply:
        caller.must("nodes.write", Target(name=f"node {node}"))
        known = _find_known_node(tx, node)
        caller.expect(known.version)
        if caller.now_s - known.heard_s <= UNSEEN_S:
            raise Refusal(
                HTTPStatus.CONFLICT,
                f"node {node} was seen {max(0.0, caller.now_s - known.heard_s):.0f} s ago",
                means="its engine would bring it back within a minute",
                do=f"elastane node fail {node}; forget it once its machine is gone for {UNSEEN_S:g} s",
            )
        nodes.forget_node(tx, node)
        message = f"{caller.principal.user}: forgot node {node}"
        events.append_event(tx, "node.forgotten", message, caller.now_s)
        return Reply(status=HTTPStatus.NO_CONTENT)

    return caller.change("node.forget", f"node {node}", do)


def _find_known_node(tx: Connection, name: str) -> Node:
    """Return the node.

    Raises:
        Refusal: no engine has ever seen it.
    """
    found = nodes.find_node(tx, name)
    if found is None:
        raise missing(f"node {name}")
    return found


def _change_node(caller: Editor, name: str, wanted: NodeWanted, why: str) -> Response:
    check_remark("why", why)

    def do(tx: Connection) -> Reply:
        caller.must("nodes.write", Target(name=f"node {name}"))
        before = _find_known_node(tx, name)
        caller.expect(before.version)
        if (before.wanted, before.why) == (wanted, why):
            return reply(before, version=before.version)
        after = nodes.update_node(tx, name, wanted, why)
        message = f"{caller.principal.user}: {wanted} node {name}" + (f", {why}" if why else "")
        events.append_event(tx, f"node.{wanted}", message, caller.now_s)
        return reply(after, version=after.version)

    return caller.change(f"node.{wanted}", f"node {name}", do)
