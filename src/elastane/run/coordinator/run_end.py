"""The end of a run, which is final: finished, stopped or failed."""

from dataclasses import replace

from elastane.common.exit_codes import ExitCode
from elastane.run.coordinator.actions import Ending
from elastane.run.coordinator.checkpointing import (
    ASK_AGAIN_S,
    is_last_checkpoint_settled,
    reopen_last_checkpoint,
)
from elastane.run.coordinator.deaths import describe_causes, exclude_unheard_workers, record_all_deaths
from elastane.run.coordinator.turn import Turn
from elastane.run.nouns.control import ModelWritten, RunOver, WorkerExit, WriteModel
from elastane.run.nouns.membership import WorkerId
from elastane.run.nouns.records import SCRIPT, RunEnd
from elastane.run.nouns.resources import RESOURCES

LATE_REPORTS_S = 30.0
"""How long the end of a run waits for reports of its last steps."""
MOST_DEATHS = 5
WITHIN_S, WITHIN_STEPS = 60.0, 10
"""A death counts until both this time and this number of steps have passed: steps may be fast or slow."""


def end_run(turn: Turn, event: RunEnd, over: RunOver, *, who: str = "coordinator") -> None:
    """End the run with an outcome; on several machines it must be claimed first. The first outcome counts."""
    # The model of a failed run is not reliable.
    files = turn.roster.model.files if over.code in (ExitCode.OK, ExitCode.STOPPED_BY_USER) else {}
    ending = Ending(event, over, who, files)
    if not turn.roster.spec.listen:
        announce_end(turn, ending)
    elif not turn.roster.claiming.is_ending:
        turn.claim(ending)


def end_as_claimed(turn: Turn) -> None:
    """End the run with the outcome that an earlier term has claimed."""
    claim = turn.roster.claiming.outcome
    if claim is not None and turn.roster.over is None:
        over = RunOver(code=claim.code, why=claim.why, traceback=claim.traceback, lost=claim.lost)
        announce_end(turn, Ending(claim.event, over, claim.cause, claim.files))


def announce_end(turn: Turn, ending: Ending) -> None:
    """Write the outcome and dismiss all workers; inform the agent first, so that it replaces none of them."""
    over = ending.over
    detail: dict[str, float | int | str] = {"traceback": over.traceback} if over.traceback else {}
    exclude_unheard_workers(turn)
    record_all_deaths(turn)
    for first in turn.roster.times.open:
        turn.record_start(first)
    turn.record(ending.event, who=ending.cause, why=over.why, detail=detail, files=ending.files)
    turn.roster = replace(turn.roster, over=over)
    turn.send_to_agent(over)
    for worker in turn.roster.started:
        turn.dismiss(
            worker,
            min(over.code, 1) if over.code != ExitCode.STOPPED_BY_USER else 0,
            over.why or "the run is over",
        )


def fail_run(
    turn: Turn, why: str, *, traceback: str = "", who: str = "coordinator", lost: bool = False
) -> None:
    end_run(turn, "run.failed", RunOver(code=1, why=why, traceback=traceback, lost=lost), who=who)


def end_when_done(turn: Turn) -> None:
    """Order the model after the last step, from another worker if the first dies; then end the run."""
    roster = turn.roster
    at_work = roster.at_work
    if at_work is None:
        return
    living = roster.list_living(at_work.workers)
    reports = [roster.reports.get(worker) for worker in living]
    if roster.finishing is None:
        if not living or any(report is None or report.state != "finished" for report in reports):
            return
        turn.roster = replace(roster, finishing=turn.now)
        reopen_last_checkpoint(turn)
        roster = turn.roster
    since = turn.now if roster.finishing is None else roster.finishing
    if not living and not roster.model.written:
        fail_run(
            turn,
            f"every worker died after the last step, {roster.progress.step}, before one had written the model"
            + describe_causes(roster, at_work.workers),
            lost=True,
        )
        return
    # The ledger may not have the last steps yet.
    if roster.progress.recorded < roster.progress.step:
        if turn.now - since >= LATE_REPORTS_S:
            fail_run(
                turn,
                f"the ledger ends at step {roster.progress.recorded} of {roster.progress.step}: no worker "
                "reports the next one, or the disk refused it; then `elastane events` shows ledger.stalled",
            )
        return
    if not is_last_checkpoint_settled(turn, since):
        return
    if turn.roster.model.written:
        finish_run(turn)
    else:
        _order_model(turn, living)


def _order_model(turn: Turn, living: tuple[WorkerId, ...]) -> None:
    """Ask the first living worker that has not refused to write the model; fail the run if all have."""
    roster = turn.roster
    able = [worker for worker in living if worker not in roster.model.refused]
    if not able:
        why = next(iter(roster.model.refused.values()))
        fail_run(turn, f"no worker could write the model: {why.splitlines()[0]}", traceback=why)
    elif (
        roster.model.writer is None
        or roster.model.writer[0] != able[0]
        or turn.now - roster.model.writer[1] >= ASK_AGAIN_S
    ):
        turn.roster = replace(roster, model=replace(roster.model, writer=(able[0], turn.now)))
        turn.send(able[0], WriteModel())


def receive_model_written(turn: Turn, written: ModelWritten) -> None:
    """Record that the model is written, or that another worker must write it."""
    roster, worker = turn.roster, written.worker
    if not written.error:
        turn.roster = replace(roster, model=replace(roster.model, written=True, files=written.files))
    elif worker not in roster.model.refused:
        refused = {**roster.model.refused, worker: written.error}
        turn.roster = replace(roster, model=replace(roster.model, refused=refused))
        turn.record("model.failing", who=f"worker {worker}", why=written.error.splitlines()[0])


def finish_run(turn: Turn) -> None:
    roster = turn.roster
    # Workers are dismissed only after all have settled, so a remaining report has the reason.
    endings = sorted({report.ending for report in roster.reports.values() if report.ending})
    if any(report.stopped for report in roster.reports.values()):
        stop_run(turn)
    elif endings:
        why = f"ended by its script after step {roster.progress.step}: {endings[0]}"
        end_run(turn, "run.finished", RunOver(code=0, why=why), who=SCRIPT)
    else:
        end_run(turn, "run.finished", RunOver(code=0, why=f"all {roster.progress.step} steps are made"))


def stop_run(turn: Turn) -> None:
    request = turn.roster.stopping
    # Members do not know the request that an earlier coordinator received.
    who, reason = ("", "") if request is None else (request.who, request.why.removesuffix("."))
    why = f"stopped after step {turn.roster.progress.step}" + (f": {reason}" if reason else "")
    end_run(turn, "run.stopped", RunOver(code=ExitCode.STOPPED_BY_USER, why=why), who=who)


# -- workers that exhaust a resource: the run replaces them, but not forever -----------------------------
#
# A replacement that reaches the same limit does not help. After a number of such deaths within a short
# time the run continues with the living workers, and fails without any.


def count_exhausted(turn: Turn, ended: WorkerExit) -> None:
    """Count a member that died of exhaustion; stop replacing such members after too many recent deaths."""
    roster, resource = turn.roster, RESOURCES.get(ended.code)
    if resource is None or roster.stopping is not None or roster.finishing is not None:
        return
    recent = tuple(
        (time, step)
        for time, step in roster.troubles.exhausted
        if turn.now - time < WITHIN_S or roster.progress.step - step < WITHIN_STEPS
    )
    recent = (*recent, (turn.now, roster.progress.step))
    turn.roster = replace(roster, troubles=replace(roster.troubles, exhausted=recent))
    # All members may reach one limit of the machine at once; that does not show that later ones will too.
    if len(recent) < max(MOST_DEATHS, 2 * (roster.wanted.target or 1)):
        return
    story = (
        f"{len(recent)} workers ran out of {resource.name} one after the other; the last, worker "
        f"{ended.worker}, at step {roster.progress.step}, see logs/worker-{ended.worker}.log; {resource.do}"
    )
    present = roster.list_living(roster.newest.workers) if roster.newest is not None else ()
    if not present:
        fail_run(turn, story)
        return
    turn.roster = replace(turn.roster, troubles=replace(turn.roster.troubles, exhausted=()))
    turn.record("resize.requested", who="coordinator", why=f"{story}; the run continues with {len(present)}")
    turn.set_target(len(present), roster.wanted.draining)
