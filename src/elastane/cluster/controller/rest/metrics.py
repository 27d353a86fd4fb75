"""The pages that Prometheus scrapes, where it finds those of jobs, and the probes of orchestrators."""

import asyncio
import re
import ssl
from http import HTTPStatus
from pathlib import Path
from typing import Annotated

import httpx
from anyio import to_thread
from fastapi import APIRouter, Query, Request, Response

from elastane.cluster.controller.access.roles import Denied, Target, authorize
from elastane.cluster.controller.metrics.meters import read_health
from elastane.cluster.controller.rest.bodies import respond
from elastane.cluster.controller.rest.caller import Caller, CallerParameter, identify_caller
from elastane.cluster.controller.rest.context import Controller
from elastane.cluster.controller.rest.description import describe_route
from elastane.cluster.controller.rest.jobs import find_allowed_job
from elastane.cluster.controller.rest.parameters import Name
from elastane.cluster.controller.rest.problems import Refusal, make_missing_error
from elastane.cluster.controller.rest.readings import check_health
from elastane.cluster.controller.store import meter_rows
from elastane.cluster.controller.store.condition import UNUSABLE
from elastane.cluster.controller.store.failures import StoreError
from elastane.cluster.nouns.rest import ScrapeTarget
from elastane.common.exposition import encode_readings
from elastane.common.untrusted_data import Malformed
from elastane.run.connections.coordinator_request import read_address
from elastane.run.connections.endpoint import build_bearer_header
from elastane.run.connections.run_certificate import build_client_context
from elastane.run.nouns.run_metrics import METRICS_PATH
from elastane.run.nouns.rundir import RunDir

router = APIRouter()

MOST_TARGETS = 1000
METRICS = Target(name="metrics")
NO_REQUESTS = UNUSABLE | {"reading"}
"""While one of these checks fails, requests that need the store fail."""
RUN_TIMEOUT_S = 5.0
"""Less than the ten seconds that Prometheus waits."""
RUNS_AT_ONCE = 64
LARGEST_PAGE_BYTES = 256 << 10
PLAIN = "text/plain; version=0.0.4"
TRUST_NONE = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
"""For plain HTTP: reading the certificates of the machine would take longer than the request."""
_PAGE = re.compile(rb"(?:(?:# (?:HELP|TYPE) )?elastane_run_[\t -~]*\n)+")


# The paths without a version are those that their callers expect.


@router.get("/metrics", include_in_schema=False)
def get_metrics(request: Request, with_jobs: Annotated[bool, Query(alias="jobs")] = True) -> Response:
    """Return the metrics of the cluster.

    While the store cannot be used, no token can be checked. Then the answer has only what `/v1/health` shows.
    """
    controller: Controller = request.app.state.controller
    condition = controller.store.soundness.condition
    try:
        caller = identify_caller(request)
        caller.require_right("metrics.read", METRICS)
        with caller.begin_read() as tx:
            readings = controller.meters.read(tx, condition, with_jobs=with_jobs)
    except StoreError:
        readings = read_health(condition)
    body, content_type = encode_readings(readings, request.headers.get("accept", ""))
    return Response(body, headers={"Content-Type": content_type, "Cache-Control": "no-store"})


@router.get("/v1/scrape-targets", tags=["metrics"], **describe_route(tuple[ScrapeTarget, ...]))
def get_scrape_targets(caller: CallerParameter) -> Response:
    """List the metrics pages of the jobs that run, for the service discovery of Prometheus by HTTP."""
    caller.require_right("metrics.read", METRICS)
    with caller.begin_read() as tx:
        running = meter_rows.list_running_jobs(tx, MOST_TARGETS)
    # The controller passes them on, so its own address leads to all of them.
    address = caller.request.url.netloc
    return respond(
        tuple(
            ScrapeTarget(
                targets=(address,),
                labels={
                    "__metrics_path__": f"/v1/jobs/{job.name}/metrics",
                    "job_name": job.name,
                    "team": job.team,
                },
            )
            for job in running
        )
    )


@router.get("/v1/jobs/{job}/metrics", tags=["metrics"], **describe_route(str, media=PLAIN))
async def get_job_metrics(caller: CallerParameter, job: Name) -> Response:
    """Return the metrics of a job's run, as its coordinator counts them now."""
    run_dir = await to_thread.run_sync(_find_run_dir, caller, job)
    asked: asyncio.Semaphore = caller.request.app.state.asked_runs
    if asked.locked():
        raise _refuse_job_metrics(job, f"{RUNS_AT_ONCE} other runs are being asked")
    try:
        async with asked:
            # In the event loop: a run that answers slowly must not hold a thread of other requests.
            page = await fetch_run_page(run_dir, RUN_TIMEOUT_S)
    except TimeoutError as error:
        raise _refuse_job_metrics(job, f"no answer within {RUN_TIMEOUT_S:g} s") from error
    except (OSError, Malformed) as error:
        raise _refuse_job_metrics(job, str(error)) from error
    return Response(page, headers={"Content-Type": PLAIN, "Cache-Control": "no-store"})


def _find_run_dir(caller: Caller, job: str) -> RunDir:
    with caller.begin_read() as tx:
        if isinstance(authorize(caller.principal, "metrics.read", METRICS), Denied):
            find_allowed_job(tx, caller, job, "job.read")
        run_dir = meter_rows.map_run_dirs(tx, job).get(job)
    if run_dir is None:
        raise make_missing_error(f"run of job {job} that trains")
    return RunDir(Path(run_dir))


def _refuse_job_metrics(job: str, why: str) -> Refusal:
    return Refusal(
        HTTPStatus.SERVICE_UNAVAILABLE,
        f"the run of job {job} gives no metrics: {why}",
        means="it begins or ends, its script is an unmodified one, or its coordinator is being replaced",
        do="try again; the extra `metrics` must be installed where the job runs",
        headers={"Retry-After": "5"},
    )


@router.get("/healthz", include_in_schema=False)
def get_liveness() -> Response:
    """Answer: the process works. A restart would repair none of the problems of `/readyz`."""
    return _answer_probe(HTTPStatus.OK, "ok")


@router.get("/readyz", include_in_schema=False)
def get_readiness(request: Request) -> Response:
    """Answer 200 if the controller can answer requests, otherwise 503 with the checks that fail.

    Other failing checks leave it ready: agents and people still need its answers.
    """
    problems = check_health(request.app.state.controller.store)
    if failing := [problem for problem in problems if problem.check in NO_REQUESTS]:
        lines = "\n".join(f"{problem.check}: {problem.what}" for problem in failing)
        return _answer_probe(HTTPStatus.SERVICE_UNAVAILABLE, lines)
    return _answer_probe(HTTPStatus.OK, "ok")


def _answer_probe(status: HTTPStatus, text: str) -> Response:
    return Response(
        f"{text}\n", status, media_type="text/plain; charset=utf-8", headers={"Cache-Control": "no-store"}
    )


async def fetch_run_page(run_dir: RunDir, timeout_s: float) -> bytes:
    """Return the metrics of a run in Prometheus' plain text format, version 0.0.4.

    The owner of the run may write any address into its directory, and answer as slowly as it likes. So only
    metrics of a run come back, never another page that this machine can reach, and only in time.

    Raises:
        OSError: the files cannot be read, or no coordinator answers in time.
        Malformed: the files are not those of a run, or the answer is not a page of its metrics.
    """
    endpoint, secret = await asyncio.to_thread(read_address, run_dir)
    host = f"[{endpoint.host}]" if ":" in endpoint.host else endpoint.host
    scheme = "https" if endpoint.certificate else "http"
    client = httpx.AsyncClient(
        headers=build_bearer_header(secret) | {"Accept": PLAIN, "Accept-Encoding": "identity"},
        verify=build_client_context(endpoint.certificate) if endpoint.certificate else TRUST_NONE,
        # Neither a proxy nor a redirect may get the secret.
        trust_env=False,
        follow_redirects=False,
        # The whole transfer has one.
        timeout=httpx.Timeout(None),
    )
    page = b""
    try:
        async with (
            asyncio.timeout(timeout_s),
            client,
            client.stream("GET", f"{scheme}://{host}:{endpoint.port}{METRICS_PATH}") as answer,
        ):
            if answer.status_code != HTTPStatus.OK:
                raise Malformed(f"the coordinator answered with the status {answer.status_code}")
            async for part in answer.aiter_raw():
                page += part
                if len(page) > LARGEST_PAGE_BYTES:
                    break
    except httpx.HTTPError as error:
        raise ConnectionError(f"its coordinator gave no answer ({type(error).__name__})") from error
    if len(page) > LARGEST_PAGE_BYTES or _PAGE.fullmatch(page) is None:
        raise Malformed("the answer is not a page of metrics of a run")
    return page
