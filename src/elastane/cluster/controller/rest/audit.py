"""The audit log."""

from fastapi import APIRouter, Response

from elastane.cluster.controller.access.roles import Target
from elastane.cluster.controller.rest.bodies import respond
from elastane.cluster.controller.rest.caller import CallerParameter
from elastane.cluster.controller.rest.description import describe_route
from elastane.cluster.controller.rest.parameters import After, Limit
from elastane.cluster.controller.store import audit
from elastane.cluster.nouns.history import AuditLine
from elastane.common.bodies import Page

router = APIRouter(prefix="/v1/audit", tags=["audit"])


@router.get("", **describe_route(Page[AuditLine]))
def get_audit(caller: CallerParameter, after: After = None, limit: Limit = 100) -> Response:
    """List the lines of the audit log, newest first. They are never changed or deleted."""
    caller.require_right("audit.read", Target(name="the audit log", team=caller.principal.team))
    with caller.begin_read() as tx:
        found = audit.list_audit_page(
            tx, teams=caller.teams, of_none=caller.of_the_cluster, before=after, limit=limit
        )
    return respond(Page(items=found.items, after=found.after))
