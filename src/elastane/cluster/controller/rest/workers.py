"""What the workers of a job do at this moment, which its run knows and no record has.

There are none while the job waits, while its run begins or ends or its coordinator is replaced, and when many
runs are being asked: a page shows the records then, and asks again.
"""

import asyncio
from pathlib import Path

from anyio import to_thread
from fastapi import APIRouter, Response

from elastane.cluster.controller.rest.bodies import respond
from elastane.cluster.controller.rest.caller import Caller, CallerParameter
from elastane.cluster.controller.rest.description import describe_route
from elastane.cluster.controller.rest.jobs import find_allowed_job
from elastane.cluster.controller.rest.parameters import Name
from elastane.cluster.controller.store import meter_rows
from elastane.cluster.nouns.job_workers import JobWorker, list_job_workers
from elastane.common.bodies import Page
from elastane.run.connections.coordinator_request import CoordinatorClient
from elastane.run.nouns.control import AskStatus
from elastane.run.nouns.rundir import RunDir

router = APIRouter(tags=["jobs"])

ANSWER_S = 2.5
"""Less than the three seconds for which a page waits for the controller."""


@router.get("/v1/jobs/{job}/workers", **describe_route(Page[JobWorker]))
async def get_job_workers(caller: CallerParameter, job: Name) -> Response:
    """List the workers of a job by machine, and what each does now."""
    run_dir = await to_thread.run_sync(_find_live_run, caller, job)
    asked: asyncio.Semaphore = caller.request.app.state.asked_runs
    found: tuple[JobWorker, ...] = ()
    if run_dir and not asked.locked():
        async with asked:
            # In the event loop: a run that answers slowly must not hold a thread of other requests.
            found = await _ask_workers(RunDir(Path(run_dir)))
    return respond(Page(items=found))


def _find_live_run(caller: Caller, job: str) -> str:
    """Return the directory of the run of a job; empty: it does not train."""
    with caller.begin_read() as tx:
        find_allowed_job(tx, caller, job, "job.read")
        return meter_rows.map_run_dirs(tx, job).get(job, "")


async def _ask_workers(run_dir: RunDir) -> tuple[JobWorker, ...]:
    client = CoordinatorClient(run_dir)
    try:
        answer = await client.ask(AskStatus(), ANSWER_S)
    finally:
        await client.close()
    return () if answer is None else list_job_workers(answer.processes)
