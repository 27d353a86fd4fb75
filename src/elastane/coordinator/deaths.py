"""A death is acted upon at once, and written down when it is known how the process ended.

A peer that loses its connection is quicker than the agent, and only the agent knows of signals and exit
codes; why a script has failed its worker says itself. The line in ``events.jsonl`` waits for such a word,
though not for long. It keeps the time of the first news, and there is one for every death.
"""

import signal
from collections.abc import Iterable
from dataclasses import replace

import msgspec

from elastane.api.control import CANNOT_GO_ON, LARGEST_SCRIPT_CODE, KillWorker, WorkerExit
from elastane.api.membership import WorkerId
from elastane.api.resources import RESOURCES
from elastane.coordinator.actions import WriteEvent
from elastane.coordinator.roster import Roster
from elastane.coordinator.turn import Turn

LAST_WORD_S = 1.0
"""How long a line waits for the agent's word."""

DEATHS = ("worker.died", "worker.hung")


def exclude_worker(turn: Turn, worker: WorkerId, why: str) -> None:
    """Leaves a worker out because a peer lost it, and has it ended: it must not go on by itself."""
    roster = turn.roster
    if not any((kind, worker) in roster.events.of_workers for kind in DEATHS):
        draft = turn.about("worker.died", worker, f"{why}; how it ended is not known")
        roster = replace(roster, ends=replace(roster.ends, drafts={**roster.ends.drafts, worker: draft}))
    turn.roster = replace(
        roster, ends=replace(roster.ends, excluded={**roster.ends.excluded, worker: turn.now})
    )
    turn.tell_agent(KillWorker(worker=worker))


def record_death(turn: Turn, ended: WorkerExit, how: str) -> None:
    """The line of a death whose end is known, unless it has been written."""
    draft_death(turn, ended, how)
    _write(turn, ended.worker)


def draft_death(turn: Turn, ended: WorkerExit, how: str) -> None:
    """How a process ended is known; the line may still wait for something better to be told."""
    roster, worker = turn.roster, ended.worker
    if any((kind, worker) in roster.events.of_workers for kind in DEATHS):
        return
    kind = "worker.hung" if ended.hung else "worker.died"
    draft = roster.ends.drafts.get(worker) or turn.about(kind, worker)
    draft = msgspec.structs.replace(draft, kind=kind, why=how)
    turn.roster = replace(roster, ends=replace(roster.ends, drafts={**roster.ends.drafts, worker: draft}))


def drop_draft(turn: Turn, worker: WorkerId) -> None:
    """Another event tells what became of it."""
    untold = {other: draft for other, draft in turn.roster.ends.drafts.items() if other != worker}
    turn.roster = replace(turn.roster, ends=replace(turn.roster.ends, drafts=untold))


def record_overdue_deaths(turn: Turn) -> None:
    """The lines that have waited long enough. Whose script has ended is judged elsewhere."""
    for worker, draft in turn.roster.ends.drafts.items():
        if turn.now - draft.time >= LAST_WORD_S and worker not in turn.roster.ends.suspects:
            _write(turn, worker)


def record_all_deaths(turn: Turn) -> None:
    """At the end of a run nobody will know better."""
    for worker in turn.roster.ends.drafts:
        _write(turn, worker)


def _write(turn: Turn, worker: WorkerId) -> None:
    draft = turn.roster.ends.drafts.get(worker)
    if draft is None:
        return
    drop_draft(turn, worker)
    turn.actions.append(WriteEvent(draft))
    turn.roster = replace(
        turn.roster,
        events=replace(turn.roster.events, of_workers=turn.roster.events.of_workers | {(draft.kind, worker)}),
    )


def describe_exit(ended: WorkerExit) -> str:
    """In words, as: killed by SIGKILL; exit code 3; hung: no heartbeat for 2.1 s."""
    if ended.why:
        return ended.why
    if (resource := RESOURCES.get(ended.code)) is not None:
        return f"it ran out of {resource.name} ({resource.do}; see logs/worker-{ended.worker}.log)"
    if ended.code == CANNOT_GO_ON:
        return f"a thread of Elastane's died in it, see logs/worker-{ended.worker}.log"
    if ended.code >= 0:
        return f"exit code {ended.code}"
    try:
        return f"killed by {signal.Signals(-ended.code).name}"
    except ValueError:
        return f"killed by signal {-ended.code}"


def describe_causes(roster: Roster, workers: Iterable[WorkerId]) -> str:
    """How they ended, as far as the agent has said, in brackets to follow a clause; empty: nobody knows."""
    ended: dict[str, list[WorkerId]] = {}
    for worker in sorted(workers):
        if worker in roster.ends.exits:
            ended.setdefault(describe_exit(roster.ends.exits[worker]), []).append(worker)
    return f" ({'; '.join(f'{format_workers(dead)}: {how}' for how, dead in ended.items())})" if ended else ""


def format_workers(workers: Iterable[WorkerId]) -> str:
    """As in: worker 2; workers 2, 3 and 5."""
    listed = [str(worker) for worker in workers]
    if len(listed) == 1:
        return f"worker {listed[0]}"
    return f"workers {', '.join(listed[:-1])} and {listed[-1]}"


def is_script_exit(ended: WorkerExit) -> bool:
    """Its script, or what the script runs, has ended the process."""
    return not ended.hung and 0 <= ended.code <= LARGEST_SCRIPT_CODE
