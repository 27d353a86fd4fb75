"""Declarations: cohorts, teams with quotas, priorities, engines, pools, egress, calendar, triggers, rules."""

from collections.abc import Callable
from http import HTTPStatus
from typing import Annotated, Any

from fastapi import APIRouter, Response
from sqlalchemy import Connection

from elastane.cluster.controller.access.roles import Action, Target, has_role_in
from elastane.cluster.controller.cluster.declarations import (
    KINDS,
    NAMED,
    ONE,
    PRIVATE,
    Document,
    Kind,
    NamedDocument,
    check_config,
    diff_configs,
    encode_document,
    put_document,
    remove_document,
)
from elastane.cluster.controller.rest.bodies import build_reply, parse_body, respond
from elastane.cluster.controller.rest.caller import CallerParameter, Editor, EditorParameter
from elastane.cluster.controller.rest.description import describe_route
from elastane.cluster.controller.rest.parameters import Name
from elastane.cluster.controller.rest.problems import make_missing_error
from elastane.cluster.controller.rest.removals import check_mentions, check_unused
from elastane.cluster.controller.store import documents, history
from elastane.cluster.controller.store.replies import Reply
from elastane.cluster.nouns.config import Change, SchedulingRules
from elastane.cluster.nouns.differences import add_article, add_words, describe_document_change
from elastane.common.bodies import Page
from elastane.common.errors import BadField

router = APIRouter(prefix="/v1", tags=["declarations"])

SINGULAR: dict[Kind, str] = {
    "cohorts": "cohort",
    "teams": "team",
    "priorities": "priority class",
    "engines": "engine",
    "pools": "pool",
    "egress": "egress price list",
    "reservations": "reservation",
    "triggers": "trigger",
    "rules": "the rules of the",
}
PLURAL: dict[Kind, str] = {"priorities": "priority classes", "egress": "egress price lists"}
"""The plurals that are not the names of their kinds."""


def _make_target(kind: Kind, name: str) -> Target:
    """Return the target of a document. A team's document belongs to the team, others to the cluster."""
    return Target(name=f"{SINGULAR[kind]} {name}", team=name if kind == "teams" else "")


def _choose_read_right(kind: Kind) -> Action:
    return "engines.read" if kind in PRIVATE else "documents.read"


def _put(caller: Editor, kind: Kind, name: str, document: Document) -> Response:
    def do(tx: Connection) -> Reply:
        caller.require_right("documents.write", _make_target(kind, name))
        found = documents.find_document(tx, kind, name)
        # Rules exist before they are first set.
        caller.expect(found.version if found else 0, there=found is not None or kind == "rules")
        check_config(put_document(documents.read_declared_documents(tx)[0], kind, document))
        if found and found.value == document:
            return build_reply(document, version=found.version)
        before = encode_document(found.value) if found and found.value is not None else None
        after = encode_document(document)
        change = Change(kind=kind, name=name, change="change" if found else "add", before=before, after=after)
        check_unused(tx, (change,), caller.now_s)
        documents.write_documents(tx, (change,), caller.now_s)
        words = describe_document_change(before, after)
        _append_change_event(tx, caller, kind, name, "changed" if found else "added", words=words)
        status = HTTPStatus.OK if found else HTTPStatus.CREATED
        return build_reply(document, status=status, version=found.version + 1 if found else 1)

    return caller.change(f"{kind}.put", f"{SINGULAR[kind]} {name}", do)


def _append_change_event(
    tx: Connection, caller: Editor, kind: Kind, name: str, what: str, *, words: str = ""
) -> None:
    shown = "" if kind in PRIVATE else words
    message = add_words(f"{caller.principal.user} {what} {SINGULAR[kind]} {name}", shown)
    caller.set_detail(words)
    history.append_event(tx, f"{kind}.{what}", message, caller.now_s, team=name if kind == "teams" else "")


def _install(kind: Kind) -> None:
    """Install the four routes of one kind of documents."""
    noun, shape = add_article(SINGULAR[kind]), KINDS[kind]
    every, one = f"/{kind}", f"/{kind}/{{name}}"
    page: Any = Page[shape]  # type: ignore[valid-type]
    declared = describe_route(shape, takes=shape, also=HTTPStatus.CREATED)
    removed = describe_route(None, status=HTTPStatus.NO_CONTENT)
    for method, path, summary, name, handler, description in (
        ("GET", every, f"List the {PLURAL.get(kind, kind)}", "list", _build_list(kind), describe_route(page)),
        ("GET", one, f"Return {noun}", "get", _build_get(kind), describe_route(shape)),
        ("PUT", one, f"Declare {noun}", "put", _build_put(kind), declared),
        ("DELETE", one, f"Remove {noun}", "delete", _build_delete(kind), removed),
    ):
        router.add_api_route(
            path, handler, methods=[method], summary=summary, operation_id=f"{name}_{kind}", **description
        )


def _build_list(kind: Kind) -> Callable[..., Response]:
    def list_documents(caller: CallerParameter) -> Response:
        caller.require_right(_choose_read_right(kind), Target(name=kind))
        with caller.begin_read() as tx:
            found = getattr(documents.read_declared_config(tx), kind)
        operator = caller.principal.role == "operator"
        items = tuple(
            document
            for document in found
            if operator or kind != "teams" or has_role_in(caller.principal, document.name)
        )
        return respond(Page(items=items))

    return list_documents


def _build_get(kind: Kind) -> Callable[..., Response]:
    def get_document(caller: CallerParameter, name: Name) -> Response:
        with caller.begin_read() as tx:
            caller.require_right(_choose_read_right(kind), _make_target(kind, name))
            found = documents.find_document(tx, kind, name)
        if found is None:
            raise make_missing_error(f"{SINGULAR[kind]} {name}")
        value = documents.require_document(found, kind, name)
        return respond(value, version=found.version)

    return get_document


def _build_put(kind: Kind) -> Callable[..., Response]:
    shape = KINDS[kind]

    def put_document(
        caller: EditorParameter, name: Name, document: Annotated[NamedDocument, parse_body(shape)]
    ) -> Response:
        if document.name != name:
            raise BadField(
                "name", f"the document has {document.name!r}, the path {name!r}", do="use one name in both"
            )
        return _put(caller, kind, name, document)

    return put_document


def _build_delete(kind: Kind) -> Callable[..., Response]:
    noun = SINGULAR[kind]

    def delete_document(caller: EditorParameter, name: Name) -> Response:
        def do(tx: Connection) -> Reply:
            caller.require_right("documents.write", _make_target(kind, name))
            found = documents.find_document(tx, kind, name)
            if found is None:
                raise make_missing_error(f"{noun} {name}")
            caller.expect(found.version)
            standing, _ = documents.read_declared_documents(tx)
            check_mentions(standing, kind, name)
            wanted = remove_document(standing, kind, name)
            check_config(wanted)
            changes = diff_configs(standing, wanted)
            if found.value is None:
                changes = (*changes, Change(kind=kind, name=name, change="remove"))
            check_unused(tx, changes, caller.now_s)
            documents.write_documents(tx, changes, caller.now_s)
            _append_change_event(tx, caller, kind, name, "removed")
            return Reply(status=HTTPStatus.NO_CONTENT)

        return caller.change(f"{kind}.delete", f"{noun} {name}", do)

    return delete_document


for _kind in NAMED:
    _install(_kind)


@router.get("/rules", **describe_route(SchedulingRules))
def get_rules(caller: CallerParameter) -> Response:
    """Return the rules that say how readily the scheduler changes sizes."""
    caller.require_right("documents.read", Target(name="rules"))
    with caller.begin_read() as tx:
        found = documents.find_document(tx, "rules", ONE)
    value = documents.require_document(found, "rules", ONE) if found else SchedulingRules()
    return respond(value, version=found.version if found else 0)


@router.put("/rules", **describe_route(SchedulingRules, takes=SchedulingRules, also=HTTPStatus.CREATED))
def put_rules(
    caller: EditorParameter, rules: Annotated[SchedulingRules, parse_body(SchedulingRules)]
) -> Response:
    """Set the rules that say how readily the scheduler changes sizes."""
    return _put(caller, "rules", ONE, rules)
