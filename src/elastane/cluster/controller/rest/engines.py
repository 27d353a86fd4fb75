"""Whether an engine can work: the controller looks for what it needs."""

import asyncio

from fastapi import APIRouter, Response

from elastane.cluster.controller.access.roles import Target
from elastane.cluster.controller.rest.bodies import respond
from elastane.cluster.controller.rest.caller import CallerParameter
from elastane.cluster.controller.rest.description import describe_route
from elastane.cluster.controller.rest.parameters import Name
from elastane.cluster.controller.rest.problems import make_missing_error
from elastane.cluster.controller.store import documents
from elastane.cluster.nouns.agents import EngineFinding
from elastane.common.bodies import Page

router = APIRouter(prefix="/v1/engines", tags=["engines"])


@router.get("/{name}/findings", **describe_route(Page[EngineFinding]))
def get_findings(caller: CallerParameter, name: Name) -> Response:
    """Look for all that an engine needs, on the machine of the controller; nothing is started."""
    target = Target(name=f"engine {name}")
    caller.require_right("engines.read", target)
    with caller.begin_read() as tx:
        config = documents.read_declared_config(tx)
    document = next((engine for engine in config.engines or () if engine.name == name), None)
    if document is None:
        raise make_missing_error(target.name)
    pools = {pool.name: pool.options for pool in config.pools or () if pool.engine == name}
    # This request has a thread of its own, so the programs of an engine may take their time.
    return respond(Page(items=asyncio.run(caller.controller.examine(document, pools))))
