"""The ends of workers that earlier terms have not written, because a coordinator died before it did.

A new coordinator learns from the agents how the processes on their machines have ended. Of a lost machine it
has only the events: which workers began, and which of them have ended.
"""

from elastane.run.coordinator.deaths import exclude_worker
from elastane.run.coordinator.hearing import list_unplaced
from elastane.run.coordinator.roster import find_forgotten_workers, find_unended_workers
from elastane.run.coordinator.turn import Turn


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
