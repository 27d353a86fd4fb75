"""The occupancy of pools."""

from fastapi import APIRouter, Response

from elastane.api.rest import Page
from elastane.api.usage import Occupancy
from elastane.controller.access.roles import Target
from elastane.controller.cluster.occupancy import measure_occupancy
from elastane.controller.rest.bodies import reply, response
from elastane.controller.rest.caller import Asking
from elastane.controller.rest.description import says
from elastane.controller.snapshot import measure_pools
from elastane.controller.store import documents, jobs, nodes
from elastane.scheduler.calendar import find_reservation_peak

router = APIRouter(prefix="/v1", tags=["nodes"])


@router.get("/occupancy", **says(Page[Occupancy]))
def get_occupancy(caller: Asking) -> Response:
    """List the pools with their devices, and how many of them the jobs of all teams use."""
    caller.must("documents.read", Target(name="pools"))
    with caller.reading() as tx:
        config = documents.read_declared_config(tx)
        pools = measure_pools(tx, config, caller.now_s)
        uses = jobs.map_uses(tx)
        known = nodes.list_nodes(tx)
    reserved = {
        pool.name: find_reservation_peak(config.reservations or (), pool.name, caller.now_s)[0]
        for pool in pools
    }
    return response(reply(Page(items=measure_occupancy(pools, known, uses.values(), reserved))))
