"""Jobs: submit, list, describe, scale, pause, resume, cancel, priorities; events, logs, explanations."""

from collections.abc import Callable
from http import HTTPStatus
from typing import Annotated

import msgspec
from fastapi import APIRouter, Path, Query, Response
from sqlalchemy import Connection

from elastane.cluster.controller.access.roles import Action, Target
from elastane.cluster.controller.admission import check_spec, scale_policy
from elastane.cluster.controller.agents.site import locate_agent_log
from elastane.cluster.controller.agents.stored_agent import format_agent_id
from elastane.cluster.controller.job_changes import add_job, change_job, end_job
from elastane.cluster.controller.jobs.stored_job import StoredJob, require_alive, require_readable
from elastane.cluster.controller.rest.bodies import build_reply, parse_body, respond
from elastane.cluster.controller.rest.caller import (
    Caller,
    CallerParameter,
    ChangerParameter,
    Editor,
    EditorParameter,
)
from elastane.cluster.controller.rest.description import describe_route
from elastane.cluster.controller.rest.job_bodies import (
    render_agent,
    render_explanation,
    render_job,
    render_summary,
)
from elastane.cluster.controller.rest.logs import (
    DEFAULT_BYTES,
    MOST_BYTES,
    PROCESS,
    Part,
    list_processes,
    read_log_part,
    read_part,
    read_record_part,
)
from elastane.cluster.controller.rest.parameters import (
    After,
    Limit,
    Name,
    NameFilter,
    PrefixFilter,
    UserFilter,
)
from elastane.cluster.controller.rest.problems import make_missing_error
from elastane.cluster.controller.store import agent_rows, code_rows, history, jobs
from elastane.cluster.controller.store.jobs import JobFilters
from elastane.cluster.controller.store.replies import Reply
from elastane.cluster.nouns.differences import add_words, describe_spec_change
from elastane.cluster.nouns.history import Event
from elastane.cluster.nouns.job_records import State
from elastane.cluster.nouns.jobs import JobSpec
from elastane.cluster.nouns.rest import (
    Bounds,
    Job,
    JobExplanation,
    JobSummary,
    PriorityChange,
    ReadRecord,
    ScaleRequest,
)
from elastane.common.bodies import Page, cut_page
from elastane.common.confined_files import ConfinedDirectory
from elastane.common.errors import BadField

router = APIRouter(prefix="/v1/jobs", tags=["jobs"])


def make_job_target(job: StoredJob) -> Target:
    return Target(name=f"job {job.name}", team=job.team, user=job.user)


def find_allowed_job(tx: Connection, caller: Caller, name: str, action: Action) -> StoredJob:
    """Return the job if the caller may do this with it."""
    job = jobs.find_job(tx, name)
    if job is None:
        raise make_missing_error(f"job {name}")
    caller.require_right(action, make_job_target(job))
    return job


@router.post("", **describe_route(Job, takes=JobSpec, status=HTTPStatus.CREATED))
def post_job(caller: ChangerParameter, spec: Annotated[JobSpec, parse_body(JobSpec)]) -> Response:
    """Submit a job. It starts as soon as its minimum fits."""
    # Check the spec before the rights: a refusal is audited, and must not store an arbitrary name of a team.
    check_spec(spec)

    def do(tx: Connection) -> Reply:
        caller.require_right("job.submit", Target(name=f"team {spec.team}", team=spec.team))
        _use_code(caller, tx, spec)
        job = add_job(tx, spec, caller.principal.user, caller.now_s, caller.controller.check_team)
        return build_reply(render_job(job), status=HTTPStatus.CREATED, version=job.version)

    return caller.change("job.submit", f"job {spec.name}", do)


def _use_code(caller: Caller, tx: Connection, spec: JobSpec) -> None:
    """Check that the controller has the code of a job from its team, and record the use."""
    if not spec.code:
        return
    if not code_rows.has_code(tx, spec.team, spec.code) or caller.controller.code.find(spec.code) is None:
        raise BadField(
            "code",
            f"team {spec.team} has not sent the code {spec.code}, or it is deleted",
            means="the job was not submitted; code is kept for some days after the last job that used it",
            do="submit with --ship-code, which sends it",
        )
    code_rows.record_code_use(tx, spec.team, spec.code, caller.now_s)


@router.get("", **describe_route(Page[JobSummary]))
def get_jobs(
    caller: CallerParameter,
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
    with caller.begin_read() as tx:
        caller.require_right("job.read", Target(name="jobs", team=caller.principal.team))
        found = jobs.list_job_page(tx, filters, after=after, limit=limit)
    return respond(Page(items=tuple(render_summary(job) for job in found.items), after=found.after))


@router.get("/{job}", **describe_route(Job))
def get_job(caller: CallerParameter, job: Name) -> Response:
    """Return the full record of a job."""
    with caller.begin_read() as tx:
        found = find_allowed_job(tx, caller, job, "job.read")
        cluster, living = agent_rows.find_cluster_id(tx), agent_rows.list_living_agents(tx, job)
    agents = tuple(render_agent(agent, cluster) for agent in living)
    return respond(render_job(found, agents), version=found.version)


def _change_job(
    caller: Editor, name: str, kind: str, message: str, change_spec: Callable[[JobSpec], JobSpec]
) -> Response:
    def do(tx: Connection) -> Reply:
        before = find_allowed_job(tx, caller, name, "job.change")
        caller.expect(before.version)
        require_alive(before)
        require_readable(before)
        spec = change_spec(before.spec)
        if spec == before.spec:
            return build_reply(render_job(before), version=before.version)
        after = change_job(tx, before, spec)
        words = describe_spec_change(before.spec, spec)
        caller.set_detail(words)
        event = add_words(f"{caller.principal.user} {message} {name}", words)
        history.append_event(tx, f"job.{kind}", event, caller.now_s, team=after.team, job=name)
        return build_reply(render_job(after), version=after.version)

    return caller.change(f"job.{kind}", f"job {name}", do)


@router.post("/{job}/scale", **describe_route(Job, takes=ScaleRequest))
def post_job_scale(
    caller: EditorParameter, job: Name, wanted: Annotated[ScaleRequest, parse_body(ScaleRequest)]
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


@router.post("/{job}/priority", **describe_route(Job, takes=PriorityChange))
def post_job_priority(
    caller: EditorParameter, job: Name, wanted: Annotated[PriorityChange, parse_body(PriorityChange)]
) -> Response:
    """Set the priority class of a job."""
    return _change_job(
        caller,
        job,
        "reprioritised",
        "changed the priority of",
        lambda spec: msgspec.structs.replace(spec, priority_class=wanted.priority_class),
    )


@router.post("/{job}/bounds", **describe_route(Job, takes=Bounds))
def post_job_bounds(
    caller: EditorParameter, job: Name, wanted: Annotated[Bounds, parse_body(Bounds)]
) -> Response:
    """Set the budget, deadline, target or priority class of a job, also while it runs."""

    def change_spec(spec: JobSpec) -> JobSpec:
        fields = msgspec.structs.asdict(wanted)
        given = {name: value for name, value in fields.items() if value is not msgspec.UNSET}
        target = {name: given.pop(name) for name in ("loss", "throughput", "by") if name in given}
        return msgspec.structs.replace(spec, **given, target=msgspec.structs.replace(spec.target, **target))

    return _change_job(caller, job, "amended", "changed the bounds of", change_spec)


def _set_suspend(spec: JobSpec, suspend: bool) -> JobSpec:
    return msgspec.structs.replace(spec, run_policy=msgspec.structs.replace(spec.run_policy, suspend=suspend))


@router.post("/{job}/pause", **describe_route(Job))
def post_job_pause(caller: EditorParameter, job: Name) -> Response:
    """Stop a job with a checkpoint, and free its devices until it is resumed."""
    return _change_job(caller, job, "paused", "paused", lambda spec: _set_suspend(spec, suspend=True))


@router.post("/{job}/resume", **describe_route(Job))
def post_job_resume(caller: EditorParameter, job: Name) -> Response:
    """Resume a paused job from its checkpoint."""
    return _change_job(caller, job, "resumed", "resumed", lambda spec: _set_suspend(spec, suspend=False))


@router.post("/{job}/cancel", **describe_route(Job))
def post_job_cancel(caller: EditorParameter, job: Name) -> Response:
    """End a job for good. Its run directory stays."""

    def do(tx: Connection) -> Reply:
        before = find_allowed_job(tx, caller, job, "job.change")
        caller.expect(before.version)
        after = end_job(tx, before, caller.principal.user, caller.now_s)
        return build_reply(render_job(after), version=after.version)

    return caller.change("job.cancelled", f"job {job}", do)


@router.get("/{job}/explain", **describe_route(JobExplanation))
def get_job_explanation(caller: CallerParameter, job: Name, limit: Limit = 20) -> Response:
    """Explain a job's size, what it waits for, and the decisions that led to it."""
    with caller.begin_read() as tx:
        found = find_allowed_job(tx, caller, job, "job.read")
        newest = history.list_decisions(tx, job, limit)
    return respond(render_explanation(found, newest))


@router.get("/{job}/events", **describe_route(Page[Event]))
def get_job_events(caller: CallerParameter, job: Name, after: After = None, limit: Limit = 100) -> Response:
    """List the events of a job, oldest first. /v1/watch streams events as they happen."""
    with caller.begin_read() as tx:
        find_allowed_job(tx, caller, job, "job.read")
        found = history.list_events_after(tx, after or 0, limit + 1, job=job)
    return respond(cut_page(found, limit, lambda event: event.id))


@router.get("/{job}/processes", **describe_route(Page[str]))
def get_job_processes(caller: CallerParameter, job: Name) -> Response:
    """List the processes of a job that have a log. Workers come first, in the order of their numbers."""
    with caller.begin_read() as tx:
        find_allowed_job(tx, caller, job, "job.read")
        run_dir, agents = jobs.find_run_dir(tx, job), _list_agent_ids(tx, job)
    logged = (id_ for id_ in agents if locate_agent_log(caller.controller.home, id_).is_file())
    return respond(Page(items=(*list_processes(run_dir), *logged)))


def _list_agent_ids(tx: Connection, job: str) -> tuple[str, ...]:
    """Return the ids of the agents of a job that have not been forgotten, oldest first."""
    cluster = agent_rows.find_cluster_id(tx)
    return tuple(format_agent_id(cluster, number) for number in agent_rows.list_agent_numbers(tx, job))


@router.get("/{job}/logs", **describe_route(str, media="text/plain; charset=utf-8"))
def get_job_log(
    caller: CallerParameter,
    job: Name,
    process: Annotated[
        str, Query(pattern=PROCESS, description="worker-N, agent, coordinator, fork-server or an agent's id.")
    ] = "worker-0",
    offset: Annotated[
        int, Query(ge=-(2**50), le=2**50, description="First byte; negative: from the end.")
    ] = -DEFAULT_BYTES,
    limit: Annotated[int, Query(ge=1, le=MOST_BYTES, description="Largest number of bytes.")] = MOST_BYTES,
) -> Response:
    """Return the raw bytes of a part of a log. The header Elastane-Next-Offset has the next part's offset."""
    with caller.begin_read() as tx:
        find_allowed_job(tx, caller, job, "job.read")
        run_dir = jobs.find_run_dir(tx, job)
        is_agent = process in _list_agent_ids(tx, job)
    if is_agent:
        home = caller.controller.home
        part = read_part(ConfinedDirectory(home), locate_agent_log(home, process), offset, limit)
    else:
        part = read_log_part(run_dir, process, offset, limit)
    if part is None:
        raise make_missing_error(f"log of {process} of job {job}")
    return _respond_with_part(part)


@router.get("/{job}/records/{record}", **describe_route(str, media="text/plain; charset=utf-8"))
def get_job_record(
    caller: CallerParameter,
    job: Name,
    record: Annotated[ReadRecord, Path(description="A file of the run directory.")],
    offset: Annotated[int, Query(ge=0, le=2**50, description="First byte.")] = 0,
    limit: Annotated[int, Query(ge=1, le=MOST_BYTES, description="Largest number of bytes.")] = MOST_BYTES,
) -> Response:
    """Return the raw bytes of a part of a record of a job's run. Elastane-Next-Offset: of the next part."""
    with caller.begin_read() as tx:
        find_allowed_job(tx, caller, job, "job.read")
        run_dir = jobs.find_run_dir(tx, job)
    part = read_record_part(run_dir, record, offset, limit)
    if part is None:
        raise make_missing_error(f"record {record} of job {job}")
    return _respond_with_part(part)


def _respond_with_part(part: Part) -> Response:
    return Response(
        part.data,
        media_type="text/plain; charset=utf-8",
        headers={"Elastane-Next-Offset": str(part.following), "X-Content-Type-Options": "nosniff"},
    )
