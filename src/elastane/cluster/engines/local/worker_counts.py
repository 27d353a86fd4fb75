"""The numbers of a run's workers, from an answer of its coordinator."""

from typing import NamedTuple

from elastane.common.field_checks import MOST_WORKERS
from elastane.run.nouns.control import Answer

ENDING = ("stopping", "finishing", "over")


class WorkerCounts(NamedTuple):
    """Workers of a run; see `elastane.cluster.nouns.engine.Observation` for the fields."""

    workers: int | None = None
    members: int | None = None
    target: int | None = None
    ending: bool = False


def count_workers(answer: Answer | None) -> WorkerCounts:
    """Count the workers; all counts are unknown if the coordinator is silent or has just started."""
    if answer is None or not answer.target:
        return WorkerCounts()
    workers = [process for process in answer.processes if process.role == "worker"]
    if not 0 < answer.target <= MOST_WORKERS or len(workers) > MOST_WORKERS:
        # A coordinator is a process of the job, so its answer may be wrong. Ignore impossible numbers.
        return WorkerCounts()
    return WorkerCounts(
        workers=len(workers),
        # A worker trains from its first generation on; before, it starts or waits to be admitted.
        members=sum(bool(worker.generation) for worker in workers),
        target=answer.target,
        ending=answer.state in ENDING,
    )
