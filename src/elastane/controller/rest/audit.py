"""The audit log."""

from fastapi import APIRouter, Response

from elastane.api.history import AuditLine
from elastane.api.rest import Page
from elastane.controller.access.roles import Target
from elastane.controller.rest.bodies import reply, response
from elastane.controller.rest.caller import Asking
from elastane.controller.rest.description import says
from elastane.controller.rest.parameters import After, Limit
from elastane.controller.store import audit

router = APIRouter(prefix="/v1/audit", tags=["audit"])


@router.get("", **says(Page[AuditLine]))
def get_audit(caller: Asking, after: After = None, limit: Limit = 100) -> Response:
    """List the lines of the audit log, newest first. They are never changed or deleted."""
    caller.must("audit.read", Target(name="the audit log", team=caller.principal.team))
    with caller.reading() as tx:
        found = audit.list_audit_page(
            tx, teams=caller.teams, of_none=caller.of_the_cluster, before=after, limit=limit
        )
    return response(reply(Page(items=found.items, after=found.after)))
