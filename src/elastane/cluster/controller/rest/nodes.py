"""Nodes: list, drain, fail, use again, forget."""

from http import HTTPStatus
from typing import Annotated

from fastapi import APIRouter, Response
from sqlalchemy import Connection

from elastane.cluster.controller.access.roles import Target
from elastane.cluster.controller.rest.bodies import build_reply, parse_body, respond
from elastane.cluster.controller.rest.caller import CallerParameter, Editor, EditorParameter
from elastane.cluster.controller.rest.description import describe_route
from elastane.cluster.controller.rest.parameters import Name
from elastane.cluster.controller.rest.problems import Refusal, make_missing_error
from elastane.cluster.controller.store import history, nodes
from elastane.cluster.controller.store.replies import Reply
from elastane.cluster.nouns.differences import add_words
from elastane.cluster.nouns.pools import UNSEEN_S, Node, NodeWanted
from elastane.cluster.nouns.rest import NodeChange
from elastane.common.bodies import Page
from elastane.common.field_checks import check_remark

router = APIRouter(prefix="/v1/nodes", tags=["nodes"])
VERBS: dict[NodeWanted, str] = {"drain": "drained", "failed": "failed", "use": "returned to use"}

Why = Annotated[NodeChange, parse_body(NodeChange, empty=NodeChange())]


@router.get("", **describe_route(Page[Node]))
def get_nodes(caller: CallerParameter) -> Response:
    """List the nodes that engines have seen."""
    caller.require_right("nodes.read", Target(name="nodes"))
    with caller.begin_read() as tx:
        return respond(Page(items=nodes.list_nodes(tx)))


@router.post("/{node}/drain", **describe_route(Node, takes=NodeChange, optional=True))
def post_node_drain(caller: EditorParameter, node: Name, change: Why) -> Response:
    """Drain a node: jobs leave it without losing a step, and nothing new is placed there."""
    return _change_node(caller, node, "drain", change.why)


@router.post("/{node}/fail", **describe_route(Node, takes=NodeChange, optional=True))
def post_node_fail(caller: EditorParameter, node: Name, change: Why) -> Response:
    """Count the devices of a node as gone at once."""
    return _change_node(caller, node, "failed", change.why)


@router.post("/{node}/use", **describe_route(Node))
def post_node_use(caller: EditorParameter, node: Name) -> Response:
    """Use a node again."""
    return _change_node(caller, node, "use", "")


@router.delete("/{node}", **describe_route(None, status=HTTPStatus.NO_CONTENT))
def delete_node(caller: EditorParameter, node: Name) -> Response:
    """Forget a node that no engine sees any more."""

    def do(tx: Connection) -> Reply:
        caller.require_right("nodes.write", Target(name=f"node {node}"))
        known = _find_known_node(tx, node)
        caller.expect(known.version)
        if caller.now_s - known.heard_s <= UNSEEN_S:
            raise Refusal(
                HTTPStatus.CONFLICT,
                f"node {node} was seen {max(0.0, caller.now_s - known.heard_s):.0f} s ago",
                means="its engine would report it again within a minute",
                do=f"elastane node fail {node}; forget it after its machine has been gone for {UNSEEN_S:g} s",
            )
        nodes.forget_node(tx, node)
        message = f"{caller.principal.user} forgot node {node}"
        history.append_event(tx, "node.forgotten", message, caller.now_s)
        return Reply(status=HTTPStatus.NO_CONTENT)

    return caller.change("node.forget", f"node {node}", do)


def _find_known_node(tx: Connection, name: str) -> Node:
    found = nodes.find_node(tx, name)
    if found is None:
        raise make_missing_error(f"node {name}")
    return found


def _change_node(caller: Editor, name: str, wanted: NodeWanted, why: str) -> Response:
    check_remark("why", why)

    def do(tx: Connection) -> Reply:
        caller.require_right("nodes.write", Target(name=f"node {name}"))
        before = _find_known_node(tx, name)
        caller.expect(before.version)
        if (before.wanted, before.why) == (wanted, why):
            return build_reply(before, version=before.version)
        after = nodes.update_node(tx, name, wanted, why)
        message = add_words(f"{caller.principal.user} {VERBS[wanted]} node {name}", why)
        history.append_event(tx, f"node.{wanted}", message, caller.now_s)
        return build_reply(after, version=after.version)

    return caller.change(f"node.{wanted}", f"node {name}", do)
