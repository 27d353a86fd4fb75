"""Jobs: submit, list, describe, scale, pause, resume, cancel, priorities; events, logs, explanations."""

from collections.abc import Callable
from http import HTTPStatus
from pathlib import Path
from typing import Annotated

import msgspec
from fastapi import APIRouter, Query, Response
from sqlalchemy import Connection

from elastane.api.history import Event
from elastane.api.job_records import State
from elastane.api.jobs import JobSpec
from elastane.api.rest import Bounds, Job, JobExplanation, JobSummary, Page, PriorityChange, ScaleRequest
from elastane.controller.access.roles import Action, Target
from elastane.controller.admission import check_busy, check_job, check_shape, scale_policy
from elastane.controller.cluster.changes import add_words, describe_spec_change
from elastane.controller.jobs.requests import cancel_job, change_job_spec, create_job
from elastane.controller.jobs.stored_job import JobNameTaken, StoredJob, require_alive, require_readable
from elastane.controller.rest import caps
from elastane.controller.rest.bodies import body, reply, response
from elastane.controller.rest.caller import Asking, Caller, Changing, Editing, Editor
from elastane.controller.rest.description import says
from elastane.controller.rest.job_bodies import render_explanation, render_job, render_summary
from elastane.controller.rest.logs import DEFAULT_BYTES, MOST_BYTES, PROCESS, list_processes, read_log_part
from elastane.controller.rest.parameters import After, Limit, Name, NameFilter, PrefixFilter, UserFilter
from elastane.controller.rest.problems import missing
from elastane.controller.store import decisions, documents, events, forgetting, jobs
from elastane.controller.store.jobs import JobFilters
from elastane.controller.store.replies import Reply

router = APIRouter(prefix="/v1/jobs", tags=["jobs"])


def make_job_target(job: StoredJob) -> Target:
    return Target(name=f"job {job.name}", team=job.team, user=job.user)


def find_allowed_job(tx: Connection, caller: Caller, name: str, action: Action) -> StoredJob:
    """Return the job if the caller may do this with it.

    Raises:
        Refusal: the job does not exist, or the caller may not see it.
        NotAllowed: the caller may see the job, but not do this.
    """
    job = jobs.find_job(tx, name)
    if job is None:
        raise missing(f"job {name}")
    caller.must(action, make_job_target(job))
    return job


@router.post("", **says(Job, takes=JobSpec, status=HTTPStatus.CREATED))
def post_job(caller: Changing, spec: Annotated[JobSpec, body(JobSpec)]) -> Response:
    """Submit a job. It starts as soon as its minimum fits."""
    # Check the form before the rights: a refusal is audited, and must not store an arbitrary name of a team.
    check_shape(spec)

    def do(tx: Connection) -> Reply:
        caller.must("job.submit", Target(name=f"team {spec.team}", team=spec.team))
        check_job(spec, _list_classes(tx))
        caps.check_jobs(tx, spec, caller.principal.user)
        caller.controller.check_team(spec.team)
        _claim_name(tx, spec.name)
        job = jobs.insert_job(tx, create_job(spec, caller.principal.user, caller.now_s))
        message = f"{caller.principal.user} submitted {job.name}"
        events.append_event(tx, "job.submitted", message, caller.now_s, team=job.team, job=job.name)
        return reply(render_job(job), status=HTTPStatus.CREATED, version=job.version)

    return caller.change("job.submit", f"job {spec.name}", do)


def _claim_name(tx: Connection, name: str) -> None:
    """Check that no files of a forgotten job of this name are left.

    Raises:
        JobNameTaken: its files are still there.
    """
    left = forgetting.find_left_files(tx, name)
    if not left:
        return
    if Path(left).exists():
        raise JobNameTaken(
            f"the name {name!r} is taken",
            means="a job of that name has ended and is forgotten, but its files are still there",
            do=f"choose another, such as {name}-2, or move its run directory away",
        )
    forgetting.release_name(tx, name)


@router.get("", **says(Page[JobSummary]))
def get_jobs(
    caller: Asking,
    *,
    team: NameFilter = "",
    state: Annotated[list[State] | None, Query(max_length=6)] = None,
    user: UserFilter = "",
    queue: NameFilter = "",
    prefix: PrefixFilter = "",
    after: After = None,
    limit: Limit = 100,
) -> Response:
    """List the jobs that the token may see, newest first."""
    filters = JobFilters(
        teams=caller.teams, team=team, states=tuple(state or ()), user=user, queue=queue, prefix=prefix
    )
    with caller.reading() as tx:
        caller.must("job.read", Target(name="jobs", team=caller.principal.team))
        found = jobs.list_job_page(tx, filters, after=after, limit=limit)
    return response(reply(Page(items=tuple(render_summary(job) for job in found.items), after=found.after)))


@router.get("/{job}", **says(Job))
def get_job(caller: Asking, job: Name) -> Response:
    """Return the full record of a job."""
    with caller.reading() as tx:
        found = find_allowed_job(tx, caller, job, "job.read")
    return response(reply(render_job(found), version=found.version))


def _list_classes(tx: Connection) -> set[str]:
    return {one.name for one in documents.read_declared_config(tx).priorities or ()}


def _change_job(
    caller: Editor, name: str, kind: str, message: str, changed: Callable[[JobSpec], JobSpec]
) -> Response:
    def do(tx: Connection) -> Reply:
        before = find_allowed_job(tx, caller, name, "job.change")
        caller.expect(before.version)
        require_alive(before)
        require_readable(before)
        spec = changed(before.spec)
        if spec == before.spec:
            return reply(render_job(before), version=before.version)
        check_job(spec, _list_classes(tx))
        if spec.elastic_policy != before.spec.elastic_policy:
            check_busy(spec.elastic_policy, before.observed.virtual_ranks)
        caps.check_growth(tx, before.spec, spec)
        after = change_job_spec(before, spec)
        jobs.update_job(tx, before, after)
        words = describe_spec_change(before.spec, spec)
        caller.tells(words)
        said = add_words(f"{caller.principal.user} {message} {name}", words)
        events.append_event(tx, f"job.{kind}", said, caller.now_s, team=after.team, job=name)
        return reply(render_job(after), version=after.version)

    return caller.change(f"job.{kind}", f"job {name}", do)


@router.post("/{job}/scale", **says(Job, takes=ScaleRequest))
def post_job_scale(
    caller: Editing, job: Name, wanted: Annotated[ScaleRequest, body(ScaleRequest)]
) -> Response:
    """Set the limits of a job's size, also while it runs. Listed sizes outside of them leave the list."""
    return _change_job(
        caller,
        job,
        "scaled",
        "scaled",
        lambda spec: msgspec.structs.replace(
            spec, elastic_policy=scale_policy(spec.elastic_policy, **msgspec.structs.asdict(wanted))
        ),
    )


@router.post("/{job}/priority", **says(Job, takes=PriorityChange))
def post_job_priority(
    caller: Editing, job: Name, wanted: Annotated[PriorityChange, body(PriorityChange)]
) -> Response:
    """Set the priority class of a job."""
    return _change_job(
        caller,
        job,
        "reprioritised",
        "changed the priority of",
        lambda spec: msgspec.structs.replace(spec, priority_class=wanted.priority_class),
    )


@router.post("/{job}/bounds", **says(Job, takes=Bounds))
def post_job_bounds(caller: Editing, job: Name, wanted: Annotated[Bounds, body(Bounds)]) -> Response:
    """Set the budget, deadline or target of a job, also while it runs."""

    def changed(spec: JobSpec) -> JobSpec:
        fields = msgspec.structs.asdict(wanted)
        said = {name: value for name, value in fields.items() if value is not msgspec.UNSET}
        target = {name: said.pop(name) for name in ("loss", "throughput", "by") if name in said}
        return msgspec.structs.replace(spec, **said, target=msgspec.structs.replace(spec.target, **target))

    return _change_job(caller, job, "amended", "changed the bounds of", changed)


def _set_suspend(spec: JobSpec, suspend: bool) -> JobSpec:
    return msgspec.structs.replace(spec, run_policy=msgspec.structs.replace(spec.run_policy, suspend=suspend))


@router.post("/{job}/pause", **says(Job))
def post_job_pause(caller: Editing, job: Name) -> Response:
    """Stop a job with a checkpoint, and free its devices until it is resumed."""
    return _change_job(caller, job, "paused", "paused", lambda spec: _set_suspend(spec, suspend=True))


@router.post("/{job}/resume", **says(Job))
def post_job_resume(caller: Editing, job: Name) -> Response:
    """Resume a paused job from its checkpoint."""
    return _change_job(caller, job, "resumed", "resumed", lambda spec: _set_suspend(spec, suspend=False))


@router.post("/{job}/cancel", **says(Job))
def post_job_cancel(caller: Editing, job: Name) -> Response:
    """End a job for good. Its run directory stays."""

    def do(tx: Connection) -> Reply:
        before = find_allowed_job(tx, caller, job, "job.change")
        caller.expect(before.version)
        after = cancel_job(before, caller.now_s)
        if after.version != before.version:
            jobs.update_job(tx, before, after)
            # A job with workers gets another event when they are gone.
            kind = "job.cancelled" if after.has_ended else "job.ending"
            message = f"{caller.principal.user} cancelled {job}"
            events.append_event(tx, kind, message, caller.now_s, team=after.team, job=job)
        return reply(render_job(after), version=after.version)

    return caller.change("job.cancelled", f"job {job}", do)


@router.get("/{job}/explain", **says(JobExplanation))
def get_job_explanation(caller: Asking, job: Name, limit: Limit = 20) -> Response:
    """Explain a job's size, what it waits for, and the decisions that led to it."""
    with caller.reading() as tx:
        found = find_allowed_job(tx, caller, job, "job.read")
        newest = decisions.list_decisions(tx, job, limit)
    return response(reply(render_explanation(found, newest.items)))


@router.get("/{job}/events", **says(Page[Event]))
def get_job_events(caller: Asking, job: Name, after: After = None, limit: Limit = 100) -> Response:
    """List the events of a job, oldest first. /v1/watch streams events as they happen."""
    with caller.reading() as tx:
        find_allowed_job(tx, caller, job, "job.read")
        found = events.list_events_after(tx, after or 0, limit + 1, job=job)
    items = found[:limit]
    return response(reply(Page(items=items, after=str(items[-1].id) if len(found) > limit else "")))


@router.get("/{job}/processes", **says(Page[str]))
def get_job_processes(caller: Asking, job: Name) -> Response:
    """List the processes of a job that have a log: workers in the order of their numbers, then the others."""
    with caller.reading() as tx:
        find_allowed_job(tx, caller, job, "job.read")
        run_dir = jobs.find_run_dir(tx, job)
    return response(reply(Page(items=list_processes(run_dir))))


@router.get("/{job}/logs", **says(str, media="text/plain; charset=utf-8"))
def get_job_log(
    caller: Asking,
    job: Name,
    process: Annotated[
        str, Query(pattern=PROCESS, description="agent, coordinator, fork-server or worker-N.")
    ] = "worker-0",
    offset: Annotated[
        int, Query(ge=-(2**50), le=2**50, description="First byte; negative: from the end.")
    ] = -DEFAULT_BYTES,
    limit: Annotated[int, Query(ge=1, le=MOST_BYTES, description="At most so many bytes.")] = MOST_BYTES,
) -> Response:
    """Return the raw bytes of a part of a log. The header Elastane-Next-Offset has the next part's offset."""
    with caller.reading() as tx:
        find_allowed_job(tx, caller, job, "job.read")
        run_dir = jobs.find_run_dir(tx, job)
    part = read_log_part(run_dir, process, offset, limit)
    if part is None:
        raise missing(f"log of {process} of job {job}")
    return Response(
        part.data,
        media_type="text/plain; charset=utf-8",
        headers={"Elastane-Next-Offset": str(part.following), "X-Content-Type-Options": "nosniff"},
    )
