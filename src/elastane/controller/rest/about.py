"""Is it alive, and which version is it? No token is needed to know. And who am I? Then one is."""

from importlib.metadata import version

from fastapi import APIRouter, Request, Response

from elastane.api.health import Health
from elastane.api.rest import Me, Version
from elastane.controller.rest.bodies import reply, response
from elastane.controller.rest.caller import Asking
from elastane.controller.rest.description import says
from elastane.controller.store.condition import NO_ANSWER, Condition
from elastane.controller.store.database import read_change
from elastane.controller.store.failures import StoreError, StoreUnusable

router = APIRouter(prefix="/v1", tags=["about"])


@router.get("/health", **says(Health))
def get_health(request: Request) -> Response:
    """Which checks of the controller and its store fail, and since when; answers whatever fails."""
    store = request.app.state.controller.store
    condition: Condition = store.soundness.condition
    try:
        with store.reading() as tx:
            read_change(tx)
        condition.clear("reading")
    except StoreUnusable:
        pass
    except StoreError as error:
        condition.report("reading", NO_ANSWER, error.do, detail=error.what)
    problems = condition.problems()
    return response(reply(Health(status="failing" if problems else "ok", problems=problems)))


@router.get("/version", **says(Version))
def get_version() -> Response:
    """Of the controller and its API."""
    return response(reply(Version(elastane=version("elastane"))))


@router.get("/me", **says(Me))
def get_me(caller: Asking) -> Response:
    """Whose token this is, and what it may do."""
    who = caller.principal
    return response(reply(Me(user=who.user, role=who.role, team=who.team)))
