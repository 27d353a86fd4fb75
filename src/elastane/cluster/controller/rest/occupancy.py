"""The occupancy of pools."""

from fastapi import APIRouter, Response

from elastane.cluster.controller.access.roles import Target
from elastane.cluster.controller.cluster.occupancy import measure_occupancy
from elastane.cluster.controller.rest.bodies import respond
from elastane.cluster.controller.rest.caller import CallerParameter
from elastane.cluster.controller.rest.description import describe_route
from elastane.cluster.controller.snapshot import measure_pools
from elastane.cluster.controller.store import documents, jobs, nodes
from elastane.cluster.nouns.usage import Occupancy
from elastane.cluster.scheduler.calendar import find_reservation_peak
from elastane.common.bodies import Page

router = APIRouter(prefix="/v1", tags=["nodes"])


@router.get("/occupancy", **describe_route(Page[Occupancy]))
def get_occupancy(caller: CallerParameter) -> Response:
    """List the pools with their devices, and how many of them the jobs of all teams use."""
    caller.require_right("documents.read", Target(name="pools"))
    with caller.begin_read() as tx:
        config = documents.read_declared_config(tx)
        pools = measure_pools(tx, config, caller.now_s)
        uses = jobs.map_uses(tx)
        known = nodes.list_nodes(tx)
    reserved = {
        pool.name: find_reservation_peak(config.reservations or (), pool.name, caller.now_s)[0]
        for pool in pools
    }
    return respond(Page(items=measure_occupancy(pools, known, uses.values(), reserved)))
