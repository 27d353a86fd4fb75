"""A death is acted upon at once, and written down when it is known how the process ended.

A peer that loses its connection is quicker than the agent, and only the agent knows of signals and exit
codes; why a script has failed its worker says itself. The line in ``events.jsonl`` waits for such a word,
though not for long. It keeps the time of the first news, and there is one for every death.
"""

import signal
from collections.abc import Iterable
from dataclasses import replace

import msgspec

from elastane.api.control import CANNOT_GO_ON, LARGEST_SCRIPT_CODE, Kill, WorkerExit
from elastane.api.membership import WorkerId
from elastane.api.resources import RESOURCES
from elastane.coordinator.actions import Record
from elastane.coordinator.roster import Roster
from elastane.coordinator.turn import Turn

LAST_WORD_S = 1.0
"""How long a line waits for the agent's word."""

DEATHS = ("worker.died", "worker.hung")


def exclude(turn: Turn, worker: WorkerId, why: str) -> None:
    """Leaves a worker out because a peer lost it, and has it ended: it must not go on by itself."""
    roster = turn.roster
    if not any((kind, worker) in roster.noted for kind in DEATHS):
        draft = turn.about("worker.died", worker, f"{why}; how it ended is not known")
        roster = replace(roster, untold={**roster.untold, worker: draft})
    turn.roster = replace(roster, excluded={**roster.excluded, worker: turn.now})
    turn.tell_agent(Kill(worker=worker))


def tell(turn: Turn, ended: WorkerExit, how: str) -> None:
    """The line of a death whose end is known, unless it has been written."""
    hear_how(turn, ended, how)
    _write(turn, ended.worker)


def hear_how(turn: Turn, ended: WorkerExit, how: str) -> None:
    """How a process ended is known; the line may still wait for something better to be told."""
    roster, worker = turn.roster, ended.worker
    if any((kind, worker) in roster.noted for kind in DEATHS):
        return
    kind = "worker.hung" if ended.hung else "worker.died"
    draft = roster.untold.get(worker) or turn.about(kind, worker)
    draft = msgspec.structs.replace(draft, kind=kind, why=how)
    turn.roster = replace(roster, untold={**roster.untold, worker: draft})


def forget(turn: Turn, worker: WorkerId) -> None:
    """Another event tells what became of it."""
    untold = {other: draft for other, draft in turn.roster.untold.items() if other != worker}
    turn.roster = replace(turn.roster, untold=untold)


def tell_overdue(turn: Turn) -> None:
    """The lines that have waited long enough. Whose script has ended is judged elsewhere."""
    for worker, draft in turn.roster.untold.items():
        if turn.now - draft.time >= LAST_WORD_S and worker not in turn.roster.suspects:
            _write(turn, worker)


def tell_all(turn: Turn) -> None:
    """At the end of a run nobody will know better."""
    for worker in turn.roster.untold:
        _write(turn, worker)


def _write(turn: Turn, worker: WorkerId) -> None:
    draft = turn.roster.untold.get(worker)
    if draft is None:
        return
    forget(turn, worker)
    turn.actions.append(Record(draft))
    turn.roster = replace(turn.roster, noted=turn.roster.noted | {(draft.kind, worker)})


def how_it_ended(ended: WorkerExit) -> str:
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


def causes(roster: Roster, workers: Iterable[WorkerId]) -> str:
    """How they ended, as far as the agent has said, in brackets to follow a clause; empty: nobody knows."""
    ended: dict[str, list[WorkerId]] = {}
    for worker in sorted(workers):
        if worker in roster.exits:
            ended.setdefault(how_it_ended(roster.exits[worker]), []).append(worker)
    return f" ({'; '.join(f'{names(dead)}: {how}' for how, dead in ended.items())})" if ended else ""


def names(workers: Iterable[WorkerId]) -> str:
    """As in: worker 2; workers 2, 3 and 5."""
    listed = [str(worker) for worker in workers]
    if len(listed) == 1:
        return f"worker {listed[0]}"
    return f"workers {', '.join(listed[:-1])} and {listed[-1]}"


def by_itself(ended: WorkerExit) -> bool:
    """Its script, or what the script runs, has ended the process."""
    return not ended.hung and 0 <= ended.code <= LARGEST_SCRIPT_CODE
