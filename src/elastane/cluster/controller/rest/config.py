"""All declarations as one document: read it, compare it, apply it, and predict its effect."""

from typing import Annotated

from fastapi import APIRouter, Response
from sqlalchemy import Connection

from elastane.cluster.controller.access.roles import Target
from elastane.cluster.controller.cluster.declarations import (
    PRIVATE,
    check_config,
    diff_configs,
    merge_configs,
)
from elastane.cluster.controller.rest.bodies import build_reply, parse_body, respond
from elastane.cluster.controller.rest.caller import Caller, CallerParameter, ChangerParameter
from elastane.cluster.controller.rest.context import Controller
from elastane.cluster.controller.rest.description import describe_route
from elastane.cluster.controller.rest.removals import check_unused
from elastane.cluster.controller.snapshot import take_cluster_snapshot
from elastane.cluster.controller.store import documents, history
from elastane.cluster.controller.store.replies import Reply
from elastane.cluster.nouns.config import Change, Config
from elastane.cluster.nouns.differences import add_words, describe_document_change
from elastane.cluster.nouns.plans import Decision, Plan
from elastane.cluster.nouns.rest import Forecast, ResizedJob
from elastane.common.bodies import Page

router = APIRouter(prefix="/v1", tags=["declarations"])
ALL = Target(name="the configuration")

Wanted = Annotated[Config, parse_body(Config)]


@router.get("/config", **describe_route(Config))
def get_config(caller: CallerParameter) -> Response:
    """Return all declarations as one document, which can be kept in git and applied."""
    caller.require_right("config.read", ALL)
    with caller.begin_read() as tx:
        return respond(documents.read_declared_config(tx))


@router.post("/config/diff", **describe_route(Page[Change], takes=Config))
def post_config_diff(caller: CallerParameter, config: Wanted) -> Response:
    """Return what applying this document would add, change and remove. Kinds that it leaves out stay."""
    return respond(Page(items=_check_wanted(caller, config)[0]))


@router.post("/config/apply", **describe_route(Page[Change], takes=Config))
def post_config_apply(caller: ChangerParameter, config: Wanted) -> Response:
    """Apply this document, all at once or not at all, and return the changes."""

    def do(tx: Connection) -> Reply:
        caller.require_right("documents.write", ALL)
        changes, _ = _find_changes(tx, config, caller.now_s)
        documents.write_documents(tx, changes, caller.now_s)
        descriptions = []
        for change in changes:
            changed = describe_document_change(change.before, change.after)
            what = f"{change.change} {change.kind} {change.name}"
            descriptions.append(add_words(what, changed))
            shown = what if change.kind in PRIVATE else descriptions[-1]
            message = f"{caller.principal.user} applied a configuration: {shown}"
            team = change.name if change.kind == "teams" else ""
            history.append_event(tx, "config.applied", message, caller.now_s, team=team)
        caller.set_detail("; ".join(descriptions))
        return build_reply(Page(items=changes))

    return caller.change("config.apply", ALL.name, do)


@router.post("/policy/check", **describe_route(Forecast, takes=Config))
def post_policy_check(caller: CallerParameter, config: Wanted) -> Response:
    """Return the documents and job sizes that would change if this document were applied. Change nothing."""
    changes, wanted = _check_wanted(caller, config)
    with caller.begin_read() as tx:
        now = take_cluster_snapshot(tx, caller.now_s)
        then = take_cluster_snapshot(tx, caller.now_s, wanted)
    controller = caller.controller
    teams = {job.name: job.spec.team for job in now.snapshot.jobs}
    moved = list_resized_jobs(
        controller.plan(now.snapshot), controller.plan(then.snapshot), teams, controller
    )
    return respond(Forecast(documents=changes, jobs=moved))


def _check_wanted(caller: Caller, config: Config) -> tuple[tuple[Change, ...], Config]:
    """Return the changes of a configuration, and the configuration after them."""
    caller.require_right("config.read", ALL)
    with caller.begin_read() as tx:
        return _find_changes(tx, config, caller.now_s)


def _find_changes(tx: Connection, config: Config, now_s: float) -> tuple[tuple[Change, ...], Config]:
    standing, lost = documents.read_declared_documents(tx)
    wanted = merge_configs(standing, config)
    check_config(wanted)
    changes = (*diff_configs(standing, config), *documents.list_removals(lost, config))
    check_unused(tx, changes, now_s)
    return changes, wanted


def list_resized_jobs(
    now: Plan, then: Plan, teams: dict[str, str], controller: Controller
) -> tuple[ResizedJob, ...]:
    """Return the jobs that have another size in the second plan, with the reasons."""
    before = {decision.job: _count_workers(decision) for decision in now.decisions}
    return tuple(
        ResizedJob(
            job=decision.job,
            team=teams[decision.job],
            before=before[decision.job],
            after=after,
            sentences=controller.explain(decision, teams),
        )
        for decision in then.decisions
        if (after := _count_workers(decision)) != before[decision.job]
    )


def _count_workers(decision: Decision) -> int:
    return sum(decision.workers.values())
