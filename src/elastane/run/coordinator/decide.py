"""The coordinator's decisions, as a pure function from inputs to actions.

The shell passes every input to `decide_actions` and performs the actions. The simulator does the same with
lost, late, duplicated and reordered messages. So the coordinator repeats a message after the next report that
shows that it has not arrived, and may receive every message twice.
"""

from collections.abc import Iterable
from dataclasses import replace
from typing import assert_never

import msgspec

from elastane.common.errors import RunFailed
from elastane.run.coordinator.actions import (
    Action,
    ClaimHeld,
    ClaimsChecked,
    ClaimUnanswered,
    CommandRequest,
    Disconnected,
    Input,
    TicketsRead,
    WriteEvent,
)
from elastane.run.coordinator.admission import (
    admit,
    can_begin_elsewhere,
    count_failed_join,
    dismiss_leavers,
    dismiss_surplus,
    forget_failed_joins,
)
from elastane.run.coordinator.checkpointing import advance_checkpoints, receive_checkpoint_kept
from elastane.run.coordinator.claiming import receive_check, receive_held, receive_unanswered, repeat_claim
from elastane.run.coordinator.deaths import (
    DEATHS,
    SCRIPT_LAST_WORD_S,
    describe_exit,
    draft_death,
    drop_draft,
    exclude_lost_workers,
    is_script_exit,
    record_death,
    record_overdue_deaths,
)
from elastane.run.coordinator.event_summary import ENDS, find_key_step
from elastane.run.coordinator.generations import begin_first_generation, plan_generation, replace_dead_workers
from elastane.run.coordinator.hearing import record_return
from elastane.run.coordinator.nodes import advance_nodes, receive_agent_report
from elastane.run.coordinator.placement import build_orders, is_order_known
from elastane.run.coordinator.reachability import exclude_unreachable, receive_peer_lost
from elastane.run.coordinator.requests import answer_request, drain_noticed, leave_wrong_place, request_stop
from elastane.run.coordinator.roster import (
    Roster,
    find_worker_node,
    list_named_nodes,
    list_node_workers,
)
from elastane.run.coordinator.run_end import (
    count_exhausted,
    end_as_claimed,
    end_when_done,
    fail_run,
    receive_model_written,
)
from elastane.run.coordinator.site_tickets import refuse_unproven, release_unproven
from elastane.run.coordinator.sites import dismiss_strays, stop_waiting_run, watch_sites
from elastane.run.coordinator.step_times import add_step_report, take_complete
from elastane.run.coordinator.traffic import record_traffic
from elastane.run.coordinator.turn import Turn
from elastane.run.coordinator.warnings import warn_of_unjoined
from elastane.run.nouns.control import (
    FOUND_WRONG,
    AgentReport,
    AskStop,
    CheckpointKept,
    Dismiss,
    KillWorker,
    ModelWritten,
    PeerLost,
    Propose,
    StepReports,
    StopTraining,
    WorkerEvent,
    WorkerExit,
    WorkerFailed,
    WorkerReport,
)
from elastane.run.nouns.membership import NodeName, WorkerId
from elastane.run.nouns.records import PRINTED
from elastane.run.nouns.silence_limits import LISTEN_S

PROPOSING = (replace_dead_workers, begin_first_generation, plan_generation)
"""The rules that propose a generation; while one is being claimed, no other is proposed."""
STATES = ("starting", "ready", "member", "leaving", "finished")


def decide_actions(
    roster: Roster, events: Iterable[Input], now: float, wall_s: float
) -> tuple[Roster, tuple[Action, ...]]:
    """Return the roster after some inputs, and the actions to carry out, in order.

    Args:
        events: the inputs in the order of their arrival; empty: only time has passed.
        now: seconds on a clock that does not jump, see `elastane.run.coordinator.server`.
        wall_s: seconds since 1970, the time of recorded events.
    """
    turn = Turn(roster, now, wall_s)
    for event in events:
        if turn.roster.over is not None:
            _answer_after_end(turn, event)
        elif turn.roster.term.listening and isinstance(event, CommandRequest | PeerLost | WorkerFailed):
            # Handled once the coordinator knows its workers.
            turn.roster = replace(
                turn.roster, term=replace(turn.roster.term, waiting=(*turn.roster.term.waiting, event))
            )
        else:
            _handle(turn, event)
    if turn.roster.term.listening:
        _stop_listening(turn)
    if not turn.roster.term.listening:
        _advance(turn)
    return turn.roster, tuple(turn.actions)


def _handle(turn: Turn, event: Input) -> None:
    match event:
        case WorkerReport():
            _handle_worker(turn, event)
        case AgentReport():
            _handle_agent(turn, event)
        case StepReports():
            _handle_steps(turn, event)
        case PeerLost():
            receive_peer_lost(turn, event)
        case WorkerFailed():
            _handle_failure(turn, event)
        case WorkerEvent():
            _handle_worker_event(turn, event)
        case ModelWritten():
            receive_model_written(turn, event)
        case CheckpointKept():
            receive_checkpoint_kept(turn, event)
        case CommandRequest():
            answer_request(turn, event)
        case ClaimHeld():
            receive_held(turn, event)
        case ClaimUnanswered():
            receive_unanswered(turn, event)
        case ClaimsChecked(answered):
            receive_check(turn, answered=answered)
        case TicketsRead(tickets):
            turn.roster = replace(turn.roster, site_tickets=tickets)
        case Disconnected(worker):
            turn.roster = replace(turn.roster, connected=turn.roster.connected - {worker})
        case _:
            assert_never(event)


def _advance(turn: Turn) -> None:
    """Apply the rules that depend on the roster alone, not on the last input."""
    record_overdue_deaths(turn)
    end_as_claimed(turn)
    repeat_claim(turn)
    for rule in (
        _fail_on_script_exit,
        advance_checkpoints,
        end_when_done,
        exclude_lost_workers,
        advance_nodes,
        release_unproven,
        exclude_unreachable,
        replace_dead_workers,
        begin_first_generation,
        drain_noticed,
        plan_generation,
        watch_sites,
        dismiss_strays,
        stop_waiting_run,
        dismiss_leavers,
        dismiss_surplus,
        warn_of_unjoined,
        _record_starts,
        record_traffic,
    ):
        if turn.roster.over is not None or turn.roster.claiming.is_ending:
            return
        if turn.roster.ends.suspects and rule is not _fail_on_script_exit:
            # The end of a member's script ends the run, so its peers need no new generation.
            return
        if turn.roster.claiming.pending is not None and rule in PROPOSING:
            continue
        rule(turn)


def _answer_after_end(turn: Turn, event: Input) -> None:
    roster = turn.roster
    if roster.over is None:
        return
    if isinstance(event, AgentReport):
        turn.send_to_agent(roster.over, event.node)
    elif isinstance(event, WorkerReport):
        farewell = Dismiss(code=1 if roster.over.code == 1 else 0, why=roster.over.why)
        turn.send(event.worker, roster.dismissed.get(event.worker, farewell))
    elif isinstance(event, CommandRequest):
        answer_request(turn, event)


# -- a new coordinator listens first -----------------------------------------------------------------------


def _stop_listening(turn: Turn) -> None:
    roster = turn.roster
    agents = roster.nodes.reports
    named = frozenset().union(*map(list_named_nodes, agents.values()))
    # An earlier coordinator may have lost a node and told only some agents so: the members are needed still.
    exits = {ended.worker for report in agents.values() for ended in report.exits}
    expected = {*roster.started, *roster.needed} - exits
    if (dead := _find_dead_node(roster)) is not None:
        named -= {dead}
        expected &= frozenset().union(*map(list_node_workers, agents.values()))
    all_reported = bool(agents) and agents.keys() >= named and roster.reports.keys() >= expected
    # The coordinator of a term that had just begun keeps its connections until it learns of this term.
    silence = roster.spec.silence
    limit_s = LISTEN_S + (silence.check_every_s if roster.term.takeover.follows_new else 0.0)
    if not all_reported and turn.now - roster.term.began < limit_s:
        return
    turn.roster = replace(roster, term=replace(roster.term, listening=False, waiting=()))
    for report in agents.values():
        _handle_exits(turn, report)
    for event in roster.term.waiting:
        if turn.roster.over is not None:
            _answer_after_end(turn, event)
        else:
            _handle(turn, event)


def _find_dead_node(roster: Roster) -> NodeName | None:
    """Return the node that was in charge before, if nothing of it has been heard for the limit.

    Its agent answered no other one when this term was claimed, and neither it nor any of its workers has
    reported since. So its report need not be waited for. None: there is no such node.
    """
    takeover = roster.term.takeover
    node = takeover.from_node
    if node is None or takeover.follows_new or node in takeover.answering or node in roster.nodes.reports:
        return None
    return None if any(report.node == node for report in roster.reports.values()) else node


# -- workers -----------------------------------------------------------------------------------------------


def _handle_worker(turn: Turn, report: WorkerReport) -> None:
    worker = report.worker
    record_return(turn, worker)
    turn.roster = replace(turn.roster, heard={**turn.roster.heard, worker: turn.now})
    known = turn.roster.reports.get(worker)
    if known is not None and is_outdated(known, report):
        return
    _store_report(turn, report)
    roster = turn.roster
    if worker in roster.ends.exits:
        return
    turn.record_worker_event("worker.started", worker)
    if worker in roster.ends.excluded:
        if not roster.is_left_out(worker):
            return
        turn.send_to_agent(KillWorker(worker=worker))
        # Only after its death is written: a later coordinator could mistake its exit for its script's.
        if worker not in roster.ends.drafts:
            turn.dismiss(worker, 1, "its peers lost their connections to it and continue without it")
    elif worker in roster.dismissed:
        turn.send(worker, roster.dismissed[worker])
    elif report.pinned is None or admit(turn, worker, report.pinned):
        _resend_missing(turn, report)


def is_outdated(known: WorkerReport, report: WorkerReport) -> bool:
    """Return whether a later report of the worker has overtaken this one; the compared values only grow."""
    return _get_position(report) < _get_position(known)


def _get_position(report: WorkerReport) -> tuple[int, int, int, int, bool]:
    newest = 0 if report.newest is None else report.newest.number
    return report.step, report.generation, newest, STATES.index(report.state), report.complete


def _store_report(turn: Turn, report: WorkerReport) -> None:
    roster, worker = turn.roster, report.worker
    newest = report.newest
    joined = report.generation > 0 and worker not in roster.joined
    highest = max(report.generation, 0 if newest is None else newest.number)
    known, progress, troubles = roster.known, roster.progress, roster.troubles
    if highest > known.highest:
        known = replace(known, highest=highest)
    if report.complete and report.generation > known.begun:
        known = replace(known, begun=report.generation, begun_s=turn.now)
    if worker in roster.reports and report.step > roster.reports[worker].step:
        progress = replace(progress, advanced_s=turn.now)
    roster = replace(
        roster,
        reports={**roster.reports, worker: report},
        connected=roster.connected | {worker},
        joined=roster.joined | {worker} if report.generation > 0 else roster.joined,
        held=roster.held | {worker} if report.complete else roster.held,
        known=known,
        progress=replace(progress, step=report.step) if report.step > progress.step else progress,
        troubles=forget_failed_joins(troubles, report.node) if joined else troubles,
    )
    if newest is not None:
        roster = _add_generation(roster, report)
    turn.roster = roster
    if report.state == "ready":
        turn.record_worker_event("worker.ready", worker)
    if joined and worker not in roster.ends.exits:
        turn.record_worker_event("worker.joined", worker, f"member since generation {report.generation}")


def _add_generation(roster: Roster, report: WorkerReport) -> Roster:
    """Add a generation that a worker reports; usually an earlier coordinator proposed it."""
    reported, newest = report.newest, roster.newest
    if reported is None:
        return roster
    if newest is None or (reported.number > newest.number and newest.term < roster.term.number):
        newest = reported if reported.term < roster.term.number else newest
    known = roster.known
    if newest is not None and reported.number >= newest.number and reported != newest:
        known = replace(known, contested=True)
    if reported.number not in known.by_number:
        known = replace(known, by_number={**known.by_number, reported.number: reported})
    if newest is roster.newest and known is roster.known:
        return roster
    return replace(roster, newest=newest, known=known)


def _resend_missing(turn: Turn, report: WorkerReport) -> None:
    roster, worker = turn.roster, report.worker
    newest = roster.newest
    if newest is None:
        return
    known = 0 if report.newest is None else report.newest.number
    is_involved = worker in newest or report.newest is not None
    if is_involved and newest.term == roster.term.number and known < newest.number:
        turn.send(worker, Propose(generation=newest))
    if roster.stopping is not None and worker in roster.needed and report.state != "finished":
        turn.send(worker, StopTraining())


def _fail_on_other_losses(turn: Turn, steps: StepReports) -> None:
    """Fail the run if a step that it makes again has another loss than before."""
    if turn.roster.absent_rule == "skip":
        # Other sites may be absent now.
        return
    lost = turn.roster.progress.lost
    for line in (report.line for report in steps.reports):
        before = lost.get(line.step, line.loss_hex)
        if before != line.loss_hex:
            losses = f"{float.fromhex(line.loss_hex)!r}, and had {float.fromhex(before)!r} before the resume"
            error = RunFailed(
                f"step {line.step}, made again after a resume, has the loss {losses}",
                means="the script has a state that no checkpoint contains, such as a variable or an object "
                "that changes between steps and on which the training depends; or the machines compute "
                "other bits",
                do="keep such a value in run.keep, or derive it from step.number; then start a new run. To "
                "go on with other bytes: elastane run --resume --accept-changes",
            )
            fail_run(turn, error.what, traceback=str(error))
            return


def _handle_steps(turn: Turn, steps: StepReports) -> None:
    _fail_on_other_losses(turn, steps)
    roster = turn.roster
    recorded, early, loss, times = (
        roster.progress.recorded,
        set(roster.progress.early),
        roster.progress.loss,
        roster.times,
    )
    committed = roster.progress.committed
    for report in steps.reports:
        # The worker's own report may have named the step already.
        if report.line.step > max(early, default=recorded):
            committed = {**committed, **dict.fromkeys(report.line.workers, turn.now)}
        times = add_step_report(times, report)
        if report.line.step > max(early, default=recorded):
            loss = report.line.loss
        if report.line.step > recorded:
            early.add(report.line.step)
    while recorded + 1 in early:
        recorded += 1
        early.discard(recorded)
    step = max(roster.progress.step, recorded, max(early, default=0))
    turn.roster = replace(
        roster,
        progress=replace(
            roster.progress,
            recorded=recorded,
            early=frozenset(early),
            committed=committed,
            loss=loss,
            step=step,
        ),
        times=times,
    )


def _record_starts(turn: Turn) -> None:
    roster = turn.roster
    if not roster.times.open:
        return
    done, times = take_complete(roster.times, roster.list_living(roster.needed))
    if not done:
        return
    turn.roster = replace(roster, times=times)
    for first in done:
        turn.record_start(first)


def _handle_failure(turn: Turn, failure: WorkerFailed) -> None:
    roster, worker = turn.roster, failure.worker
    if worker in roster.ends.failed or worker in roster.dismissed:
        return
    turn.roster = replace(roster, ends=replace(roster.ends, failed={**roster.ends.failed, worker: failure}))
    drop_draft(turn, worker)
    last_line = find_error_line(failure.traceback)
    why = f"worker {worker} failed: {last_line}"
    others = can_begin_elsewhere(roster, find_worker_node(roster, worker)) or (
        roster.newest is not None
        and any(
            other in roster.joined for other in roster.list_living(roster.newest.workers) if other != worker
        )
    )
    if not any((kind, worker) in roster.events.of_workers for kind in DEATHS):
        # It may have been killed after it sent its last message.
        turn.record_worker_event("worker.failed", worker, last_line)
    if failure.fatal and (worker in roster.joined or not others):
        fail_run(turn, why, traceback=failure.traceback, who=f"worker {worker}", lost=failure.lost)
        return
    turn.dismiss(worker, 1, why)


def find_error_line(traceback: str) -> str:
    """Return the line that names the error: the last of a traceback, or the first of Elastane's error."""
    lines = [line for line in traceback.strip().splitlines() if not line.startswith("  ")]
    return lines[-1] if lines else "it gave no reason"


MOST_PRINTED = 10_000
NO_MORE_PRINTED = (
    f"(the script has printed {MOST_PRINTED} lines: the rest is in the logs of the workers only)"
)


def _handle_worker_event(turn: Turn, message: WorkerEvent) -> None:
    roster, key, step = turn.roster, message.key, message.event.step
    reported = roster.fully_reported_step
    if key in roster.events.keys or (step is not None and step < reported):
        return
    # Workers will not report events of earlier steps any more.
    keys = {known: at for known, at in roster.events.keys.items() if at is None or at >= reported}
    keys[key] = find_key_step(message.event)
    event = msgspec.structs.replace(message.event, key=key)
    printed = roster.events.printed + (event.kind == PRINTED)
    turn.roster = replace(roster, events=replace(roster.events, keys=keys, printed=printed))
    if event.kind == PRINTED and printed >= MOST_PRINTED:
        if printed > MOST_PRINTED:
            return
        event = msgspec.structs.replace(event, why=NO_MORE_PRINTED)
    turn.actions.append(WriteEvent(event))


# -- the agents --------------------------------------------------------------------------------------------


def _handle_agent(turn: Turn, report: AgentReport) -> None:
    if refuse_unproven(turn, report):
        return
    before = turn.roster.nodes.reports.get(report.node)
    receive_agent_report(turn, report)
    if not turn.roster.term.listening:
        _handle_exits(turn, report)
        order = build_orders(turn.roster).get(report.node)
        if order is not None and not is_order_known(report, order):
            turn.send_to_agent(order, report.node)
    for process in report.workers:
        if process.worker is None or process.worker in turn.roster.ends.exits:
            continue
        turn.record_worker_event("worker.started", process.worker, pid=process.pid)
        if process.worker in turn.roster.ends.excluded and turn.roster.is_left_out(process.worker):
            turn.send_to_agent(KillWorker(worker=process.worker))
    for worker in report.awaiting_data:
        if before is None or worker not in before.awaiting_data:
            why = "it waits for its data, and all other workers wait for it"
            turn.record("data.awaited", who=f"worker {worker}", why=why, workers=(worker,))
    if report.stopping or _do_all_leave(turn.roster):
        # A run without a machine cannot go on.
        request_stop(turn, AskStop())


def _do_all_leave(roster: Roster) -> bool:
    """Return whether all nodes leave; a new coordinator may not have heard those that agents name."""
    agents, lost = roster.nodes.reports, roster.nodes.lost
    named = frozenset().union(*map(list_named_nodes, agents.values())) - lost
    return bool(agents) and agents.keys() >= named and all(agent.leaving for agent in agents.values())


def _handle_exits(turn: Turn, report: AgentReport) -> None:
    for ended in report.exits:
        if turn.roster.over is None and ended.worker not in turn.roster.ends.exits:
            _handle_exit(turn, ended, report.node)


def _handle_exit(turn: Turn, ended: WorkerExit, node: NodeName) -> None:
    roster, worker = turn.roster, ended.worker
    needed = worker in roster.needed
    turn.roster = replace(
        roster,
        ends=replace(roster.ends, exits={**roster.ends.exits, worker: ended}),
        connected=roster.connected - {worker},
        wanted=replace(roster.wanted, draining=roster.wanted.draining - {worker}),
    )
    if _is_end_recorded(roster, worker):
        return
    how = describe_exit(ended)
    dismissal = roster.dismissed.get(worker)
    if dismissal is not None and dismissal.code == 0:
        drop_draft(turn, worker)
        turn.record_worker_event("worker.left", worker, dismissal.why)
    elif worker not in roster.joined:
        if dismissal is None and worker not in roster.ends.failed:
            record_death(turn, ended, f"{how} before it joined")
        count_failed_join(turn, node, worker, how)
    elif ended.code == 0 and not needed and worker not in roster.ends.excluded:
        # An earlier coordinator dismissed it.
        turn.record_worker_event("worker.left", worker)
    elif worker not in roster.ends.failed and dismissal is None:
        if is_script_exit(ended) and roster.finishing is None:
            draft_death(turn, ended, how)
            turn.roster = replace(
                turn.roster,
                ends=replace(turn.roster.ends, suspects={**roster.ends.suspects, worker: turn.now}),
            )
        else:
            record_death(turn, ended, how)
    if worker in roster.joined:
        count_exhausted(turn, ended)
    if ended.code == FOUND_WRONG:
        leave_wrong_place(turn, worker, node)


def _is_end_recorded(roster: Roster, worker: WorkerId) -> bool:
    """Return whether a coordinator has recorded the end of a worker and acted on it."""
    if ("worker.left", worker) in roster.events.of_workers:
        # Even if this coordinator heard of its broken connections first, and has excluded it.
        return True
    if worker in roster.dismissed and any((kind, worker) in roster.events.of_workers for kind in DEATHS):
        # This coordinator has dismissed it, and then lost it with its machine, which is back now.
        return True
    # A failure that the worker has reported to this one precedes its exit; a death follows it.
    ends = DEATHS if worker in roster.reports else ENDS
    return worker not in roster.ends.excluded and any(
        (kind, worker) in roster.events.of_workers for kind in ends
    )


def _fail_on_script_exit(turn: Turn) -> None:
    """Fail the run if a member's script ended its process and no message explains that in time."""
    roster = turn.roster
    if not roster.ends.suspects:
        return
    suspects = {
        worker: since for worker, since in roster.ends.suspects.items() if worker not in roster.ends.failed
    }
    turn.roster = replace(roster, ends=replace(roster.ends, suspects=suspects))
    for worker, since in sorted(suspects.items()):
        if turn.now - since >= SCRIPT_LAST_WORD_S:
            code = roster.ends.exits[worker].code
            fail_run(
                turn,
                f"the script ended in worker {worker} (exit code {code}) before the run's last step; "
                f"see logs/worker-{worker}.log",
                who=f"worker {worker}",
            )
            return
