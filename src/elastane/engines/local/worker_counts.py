"""What a coordinator's answer says of its run's workers."""

from typing import NamedTuple

from elastane.api.control import Answer
from elastane.api.field_checks import MOST_WORKERS

ENDING = ("stopping", "finishing", "over")


class WorkerCounts(NamedTuple):
    """Workers of a run; see `elastane.api.observations.Observation` for the fields."""

    workers: int | None = None
    members: int | None = None
    target: int | None = None
    ending: bool = False


def count_workers(answer: Answer | None) -> WorkerCounts:
    """How many there are; of a coordinator that does not answer, or has begun a moment ago, nothing."""
    if answer is None or not answer.target:
        return WorkerCounts()
    workers = [process for process in answer.processes if process.role == "worker"]
    if not 0 < answer.target <= MOST_WORKERS or len(workers) > MOST_WORKERS:
        # A coordinator is a process of the job. What it says cannot be true, so it has said nothing.
        return WorkerCounts()
    return WorkerCounts(
        workers=len(workers),
        # Whoever has begun a generation trains; before its first one it starts, or waits to be let in.
        members=sum(bool(worker.generation) for worker in workers),
        target=answer.target,
        ending=answer.state in ENDING,
    )
