"""Deaths of workers: the coordinator acts at once, and writes the event when it knows the cause.

A peer notices a death before the agent does. But only the agent knows signals and exit codes, and only the
worker itself knows why its script failed. The event in ``events.jsonl`` waits for such a message for a short
time. It carries the time of the first message, and every death has exactly one event.
"""

import signal
from collections.abc import Iterable
from dataclasses import replace

import msgspec

from elastane.run.coordinator.actions import WriteEvent
from elastane.run.coordinator.event_summary import ENDS
from elastane.run.coordinator.hearing import list_unplaced
from elastane.run.coordinator.roster import Roster, find_forgotten_workers, find_unended_workers
from elastane.run.coordinator.turn import Turn
from elastane.run.nouns.control import CANNOT_GO_ON, FOUND_WRONG, LARGEST_SCRIPT_CODE, KillWorker, WorkerExit
from elastane.run.nouns.membership import WorkerId
from elastane.run.nouns.resources import RESOURCES

LAST_WORD_S = 1.0
"""How long the coordinator waits for late reports about a death: its cause, or a survivor's state."""

SCRIPT_LAST_WORD_S = 0.5
"""How long the coordinator waits for a report that explains the end of a member's script."""

DEATHS = ("worker.died", "worker.hung")


def exclude_worker(turn: Turn, worker: WorkerId, why: str, since: float) -> None:
    """Exclude a worker that its peers cannot reach, and have its process killed: it must not continue alone.

    On several machines it is killed only when the generation without it is claimed.

    Args:
        why: how its peers lost it.
        since: when the first of them reported it.
    """
    roster = turn.roster
    # An earlier coordinator may have recorded the end of a worker that the newest generation still names.
    if not any((kind, worker) in roster.events.of_workers for kind in ENDS):
        draft = turn.build_worker_event("worker.died", worker, f"{why}; how it ended is not known")
        draft = msgspec.structs.replace(draft, time=turn.wall_s - (turn.now - since))
        roster = replace(
            roster, ends=replace(roster.ends, drafts={**roster.ends.drafts, worker: (draft, since)})
        )
    turn.roster = replace(
        roster, ends=replace(roster.ends, excluded={**roster.ends.excluded, worker: turn.now})
    )
    if turn.roster.is_left_out(worker):
        turn.send_to_agent(KillWorker(worker=worker))


def record_death(turn: Turn, ended: WorkerExit, how: str) -> None:
    """Write the event of a death unless it is written already."""
    draft_death(turn, ended, how)
    _write_death(turn, ended.worker)


def draft_death(turn: Turn, ended: WorkerExit, how: str) -> None:
    """Prepare the event of a process's end; it may wait for a better explanation."""
    roster, worker = turn.roster, ended.worker
    if any((kind, worker) in roster.events.of_workers for kind in DEATHS):
        return
    kind = "worker.hung" if ended.hung else "worker.died"
    draft, since = roster.ends.drafts.get(worker) or (turn.build_worker_event(kind, worker), turn.now)
    drafted = msgspec.structs.replace(draft, kind=kind, why=how), since
    turn.roster = replace(roster, ends=replace(roster.ends, drafts={**roster.ends.drafts, worker: drafted}))


def drop_draft(turn: Turn, worker: WorkerId) -> None:
    """Drop the draft of a worker: another event describes its end."""
    drafts = {other: draft for other, draft in turn.roster.ends.drafts.items() if other != worker}
    turn.roster = replace(turn.roster, ends=replace(turn.roster.ends, drafts=drafts))


def record_overdue_deaths(turn: Turn) -> None:
    """Write the events that have waited long enough, except those of suspects, which `decide` handles."""
    for worker, (_, since) in turn.roster.ends.drafts.items():
        if turn.now - since >= LAST_WORD_S and worker not in turn.roster.ends.suspects:
            _write_death(turn, worker)


def record_all_deaths(turn: Turn) -> None:
    """Write all remaining drafts at the end of a run, when no better explanation can come."""
    for worker in turn.roster.ends.drafts:
        _write_death(turn, worker)


def _write_death(turn: Turn, worker: WorkerId) -> None:
    if worker not in turn.roster.ends.drafts:
        return
    draft, _ = turn.roster.ends.drafts[worker]
    drop_draft(turn, worker)
    turn.actions.append(WriteEvent(draft))
    turn.roster = replace(
        turn.roster,
        events=replace(turn.roster.events, of_workers=turn.roster.events.of_workers | {(draft.kind, worker)}),
    )


def describe_exit(ended: WorkerExit) -> str:
    """Describe an exit, such as "killed by SIGKILL", "exit code 3" or "hung: no heartbeat for 2.1 s"."""
    if ended.why:
        return ended.why
    if (resource := RESOURCES.get(ended.code)) is not None:
        return f"it ran out of {resource.name} ({resource.do}; see logs/worker-{ended.worker}.log)"
    if ended.code == FOUND_WRONG:
        return f"a spot check found its results wrong, see logs/worker-{ended.worker}.log"
    if ended.code == CANNOT_GO_ON:
        return f"a thread of Elastane died in it, see logs/worker-{ended.worker}.log"
    if ended.code >= 0:
        return f"exit code {ended.code}"
    try:
        return f"killed by {signal.Signals(-ended.code).name}"
    except ValueError:
        return f"killed by signal {-ended.code}"


def describe_causes(roster: Roster, workers: Iterable[WorkerId]) -> str:
    """Describe how workers ended, in brackets to follow a clause; empty if the agent has not reported it."""
    causes: dict[str, list[WorkerId]] = {}
    for worker in sorted(workers):
        if worker in roster.ends.exits:
            causes.setdefault(describe_exit(roster.ends.exits[worker]), []).append(worker)
    return (
        f" ({'; '.join(f'{format_worker_list(dead)}: {how}' for how, dead in causes.items())})"
        if causes
        else ""
    )


def format_worker_list(workers: Iterable[WorkerId]) -> str:
    """Format numbers of workers, such as "worker 2" or "workers 2, 3 and 5"."""
    numbers = [str(worker) for worker in workers]
    if len(numbers) == 1:
        return f"worker {numbers[0]}"
    return f"workers {', '.join(numbers[:-1])} and {numbers[-1]}"


def is_script_exit(ended: WorkerExit) -> bool:
    """Return whether the script, or a program that it runs, ended the process."""
    return not ended.hung and 0 <= ended.code <= LARGEST_SCRIPT_CODE


# -- the ends of workers that earlier terms have not written, because a coordinator died before it did ---
#
# A new coordinator learns from the agents how the processes on their machines have ended. Of a lost
# machine it has only the events: which workers began, and which of them have ended.


def exclude_lost_workers(turn: Turn) -> None:
    """Exclude the workers that an earlier term has lost with their machine, which prepares their events."""
    for worker in list_unplaced(turn.roster, find_forgotten_workers(turn.roster), turn.now):
        if machine := turn.roster.events.unended[worker]:
            exclude_worker(turn, worker, f"{machine} was lost", since=turn.now)


def exclude_unheard_workers(turn: Turn) -> None:
    """Exclude the workers of which nothing is heard at the end of the run.

    While the run goes on, this waits until each machine was heard or counts as lost, see `advance_nodes`.
    """
    for worker in list_unplaced(turn.roster, find_unended_workers(turn.roster), turn.now):
        exclude_worker(turn, worker, "nothing was heard of it before the run ended", since=turn.now)
