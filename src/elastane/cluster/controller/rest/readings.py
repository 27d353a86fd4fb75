"""Readings without a change.

Health, version, the identity of a token, occupancy, what an engine lacks, usage and the audit log.
"""

import asyncio
import csv
import io
from importlib.metadata import version
from typing import Annotated, Literal

import msgspec
from fastapi import APIRouter, Query, Request, Response

from elastane.cluster.controller.access.roles import Target
from elastane.cluster.controller.figures import INTERVENTIONS, compute_cluster_figures
from elastane.cluster.controller.rest.bodies import respond
from elastane.cluster.controller.rest.caller import CallerParameter
from elastane.cluster.controller.rest.description import describe_route
from elastane.cluster.controller.rest.parameters import After, Limit, Name
from elastane.cluster.controller.rest.problems import make_missing_error
from elastane.cluster.controller.snapshot import measure_cluster_occupancy, measure_pools
from elastane.cluster.controller.store import documents, history, jobs
from elastane.cluster.controller.store.condition import NO_ANSWER, Condition
from elastane.cluster.controller.store.database import Store, read_change
from elastane.cluster.controller.store.failures import StoreError, StoreUnusable
from elastane.cluster.controller.store.history import By, sum_usage
from elastane.cluster.nouns.agents import EngineFinding
from elastane.cluster.nouns.controller import Health, HealthProblem
from elastane.cluster.nouns.history import AuditLine
from elastane.cluster.nouns.rest import Me, Version
from elastane.cluster.nouns.usage import ClusterFigures, Occupancy, Usage, UsageRow
from elastane.cluster.scheduler.wording import format_time
from elastane.common.bodies import Page
from elastane.common.errors import BadField
from elastane.common.safe_text import escape_line

router = APIRouter(prefix="/v1")
MONTH_S = 30 * 24 * 3600.0

Moment = Annotated[float | None, Query(ge=0, le=1e11, allow_inf_nan=False, description="Seconds since 1970.")]
Columns = Annotated[list[By] | None, Query(max_length=4, description="Group by these; repeat for several.")]


@router.get("/health", tags=["about"], **describe_route(Health))
def get_health(request: Request) -> Response:
    """Return the failing checks of the controller and its store. It always answers 200."""
    problems = check_health(request.app.state.controller.store)
    return respond(Health(status="failing" if problems else "ok", problems=problems))


def check_health(store: Store) -> tuple[HealthProblem, ...]:
    """Return the failing checks of the controller and its store, after a small read."""
    condition: Condition = store.soundness.condition
    try:
        with store.begin_read() as tx:
            read_change(tx)
        condition.clear("reading")
    except StoreUnusable:
        pass
    except StoreError as error:
        condition.report("reading", NO_ANSWER, error.do, detail=error.what)
    return condition.list_problems()


@router.get("/version", tags=["about"], **describe_route(Version))
def get_version() -> Response:
    """Return the version of the controller and of its API."""
    return respond(Version(elastane=version("elastane")))


@router.get("/me", tags=["about"], **describe_route(Me))
def get_me(caller: CallerParameter) -> Response:
    """Return the user, the role and the team of the token."""
    principal = caller.principal
    return respond(Me(user=principal.user, role=principal.role, team=principal.team))


@router.get("/occupancy", tags=["nodes"], **describe_route(Page[Occupancy]))
def get_occupancy(caller: CallerParameter) -> Response:
    """List the pools with their devices, and how many of them the jobs of all teams use."""
    caller.require_right("documents.read", Target(name="pools"))
    with caller.begin_read() as tx:
        config = documents.read_declared_config(tx)
        found = measure_cluster_occupancy(tx, config, jobs.map_uses(tx).values(), caller.now_s)
    return respond(Page(items=found))


@router.get("/engines/{name}/findings", tags=["engines"], **describe_route(Page[EngineFinding]))
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


@router.get("/usage", tags=["usage"], **describe_route(Usage, or_as="text/csv; charset=utf-8"))
def get_usage(
    caller: CallerParameter,
    by: Columns = None,
    begin: Annotated[Moment, Query(alias="from")] = None,
    until: Moment = None,
    form: Annotated[Literal["json", "csv"], Query(alias="format")] = "json",
) -> Response:
    """Return device-seconds and cost, by default of 30 days, by team. Running jobs count until now."""
    caller.require_right("usage.read", Target(name="usage", team=caller.principal.team))
    from_s, until_s = _find_span(begin, until, caller.now_s)
    columns: tuple[By, ...] = tuple(dict.fromkeys(by or ["team"]))
    with caller.begin_read() as tx:
        found = Usage(
            from_s=from_s, until_s=until_s, rows=sum_usage(tx, columns, from_s, until_s, caller.teams)
        )
    if form == "json":
        return respond(found)
    return Response(format_usage_csv(columns, found.rows), media_type="text/csv; charset=utf-8")


@router.get("/figures", tags=["usage"], **describe_route(ClusterFigures))
def get_figures(
    caller: CallerParameter, begin: Annotated[Moment, Query(alias="from")] = None, until: Moment = None
) -> Response:
    """Return queue times, utilisation, times to the end and interventions, by default of 30 days."""
    caller.require_right("usage.read", Target(name="usage", team=caller.principal.team))
    from_s, until_s = _find_span(begin, until, caller.now_s)
    with caller.begin_read() as tx:
        config = documents.read_declared_config(tx)
        everything = sum_usage(tx, ("pool",), from_s, until_s, None)
        found = compute_cluster_figures(
            jobs.list_job_times(tx, from_s, caller.teams),
            from_s=from_s,
            until_s=until_s,
            usage=sum_usage(tx, ("job",), from_s, until_s, caller.teams),
            used_device_s=sum(row.device_s for row in everything),
            devices=sum(pool.devices for pool in measure_pools(tx, config, caller.now_s)),
            began_s=history.find_first_event_s(tx),
            interventions=history.count_audit_lines(tx, INTERVENTIONS, from_s, until_s, caller.teams),
        )
    return respond(found)


def _find_span(begin: float | None, until: float | None, now_s: float) -> tuple[float, float]:
    """Return the times between which usage counts."""
    until_s = now_s if until is None else min(until, now_s)
    from_s = until_s - MONTH_S if begin is None else begin
    if from_s > until_s:
        end = "now" if until is None or until > now_s else "until"
        raise BadField(
            "from",
            f"{format_time(from_s)} is after {end}, {format_time(until_s)}",
            do="write an earlier time",
        )
    return from_s, until_s


def format_usage_csv(by: tuple[By, ...], rows: tuple[UsageRow, ...]) -> str:
    """Format usage as CSV (RFC 4180), with a header line."""
    out = io.StringIO()
    numbers = ("owned_device_s", "borrowed_device_s", "spot_device_s", "egress_bytes", "egress_cost", "cost")
    writer = csv.DictWriter(out, (*by, *numbers), extrasaction="ignore")
    writer.writeheader()
    for row in rows:
        fields = msgspec.structs.asdict(row)
        # Each row stays on one line, for programs that do not understand quotes.
        writer.writerow(
            {name: escape_line(field) if isinstance(field, str) else field for name, field in fields.items()}
        )
    return out.getvalue()


@router.get("/audit", tags=["audit"], **describe_route(Page[AuditLine]))
def get_audit(caller: CallerParameter, after: After = None, limit: Limit = 100) -> Response:
    """List the lines of the audit log, newest first. They are never changed or deleted."""
    caller.require_right("audit.read", Target(name="the audit log", team=caller.principal.team))
    with caller.begin_read() as tx:
        found = history.list_audit_page(
            tx, teams=caller.teams, of_none=caller.of_the_cluster, before=after, limit=limit
        )
    return respond(found)
