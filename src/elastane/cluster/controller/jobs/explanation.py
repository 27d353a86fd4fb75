"""The explanation of a job's size, in sentences. Pure."""

from elastane.cluster.controller.jobs.scheduler_state import describe_restarts
from elastane.cluster.controller.jobs.stored_job import StoredJob
from elastane.cluster.nouns.job_records import Explanation, State


def explain_size(job: StoredJob) -> Explanation:
    """Return why the job has its size; for a job that has ended, how it ended."""
    if job.ended_s is not None and job.has_ended:
        end = describe_end(job.state, job.why.removesuffix("."))
        return Explanation(sentences=(f"It {end}.",), decided_s=job.ended_s)
    if job.unreadable:
        return Explanation(
            sentences=(
                f"Its record cannot be read: {job.unreadable}.",
                "It keeps the devices that it holds, and nothing is decided about it.",
                "It changes with `elastane cancel`, or once an operator has put back a backup of the store.",
            )
        )
    if not job.reason.sentences:
        return Explanation()
    sentences = (*job.reason.sentences, *describe_restarts(job))
    return Explanation(sentences=sentences, decided_s=job.reason.decided_s)


def describe_end(state: State, why: str) -> str:
    """Return how a job ended, to follow its name."""
    how = {"finished": "has finished", "failed": "has failed", "cancelled": "was cancelled"}[state]
    return f"{how}: {why}" if why else how
