"""Health, version, and the identity of a token. Only the last one needs a token."""

from importlib.metadata import version

from fastapi import APIRouter, Request, Response

from elastane.cluster.controller.rest.bodies import respond
from elastane.cluster.controller.rest.caller import CallerParameter
from elastane.cluster.controller.rest.description import describe_route
from elastane.cluster.controller.store.condition import NO_ANSWER, Condition
from elastane.cluster.controller.store.database import read_change
from elastane.cluster.controller.store.failures import StoreError, StoreUnusable
from elastane.cluster.nouns.controller import Health
from elastane.cluster.nouns.rest import Me, Version

router = APIRouter(prefix="/v1", tags=["about"])


@router.get("/health", **describe_route(Health))
def get_health(request: Request) -> Response:
    """Return the failing checks of the controller and its store. It always answers 200."""
    store = request.app.state.controller.store
    condition: Condition = store.soundness.condition
    try:
        with store.begin_read() as tx:
            read_change(tx)
        condition.clear("reading")
    except StoreUnusable:
        pass
    except StoreError as error:
        condition.report("reading", NO_ANSWER, error.do, detail=error.what)
    problems = condition.list_problems()
    return respond(Health(status="failing" if problems else "ok", problems=problems))


@router.get("/version", **describe_route(Version))
def get_version() -> Response:
    """Return the version of the controller and of its API."""
    return respond(Version(elastane=version("elastane")))


@router.get("/me", **describe_route(Me))
def get_me(caller: CallerParameter) -> Response:
    """Return the user, the role and the team of the token."""
    principal = caller.principal
    return respond(Me(user=principal.user, role=principal.role, team=principal.team))
