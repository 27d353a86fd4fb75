"""Is it alive, and which version is it? No token is needed to know. And who am I? Then one is."""

from importlib.metadata import version

from fastapi import APIRouter, Request, Response

from elastane.api.wire import Health, Me, Version
from elastane.controller.api.bodies import reply, response
from elastane.controller.api.caller import Asking
from elastane.controller.api.context import Controller
from elastane.controller.api.description import says
from elastane.controller.store.database import change

router = APIRouter(prefix="/v1", tags=["about"])


@router.get("/health", **says(Health))
def health(request: Request) -> Response:
    """Whether the controller and its store answer, and its loop decides."""
    controller: Controller = request.app.state.controller
    with controller.store.reading() as tx:
        change(tx)
    return response(reply(Health(status="failing" if controller.failing() else "ok")))


@router.get("/version", **says(Version))
def get_version() -> Response:
    """Of the controller and its API."""
    return response(reply(Version(elastane=version("elastane"))))


@router.get("/me", **says(Me))
def me(caller: Asking) -> Response:
    """Whose token this is, and what it may do."""
    who = caller.principal
    return response(reply(Me(user=who.user, role=who.role, team=who.team)))
