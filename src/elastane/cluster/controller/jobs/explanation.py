"""The explanation of a job's size, in sentences. Pure."""

from elastane.cluster.controller.jobs.scheduler_state import describe_processes, describe_restarts
from elastane.cluster.controller.jobs.stored_job import StoredJob
from elastane.cluster.nouns.job_records import Explanation, State

LONGEST_NEXT = 300
"""A list of jobs has one for each of them."""


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
    sentences = (*job.reason.sentences, *describe_processes(job), *describe_restarts(job))
    return Explanation(sentences=sentences, decided_s=job.reason.decided_s)


def describe_next_decision(job: StoredJob) -> str:
    """Return why the size of the job stays, and what would change it; empty if nothing is known.

    The first sentence of a plan is left out: it says the size itself.
    """
    if job.has_ended or job.unreadable:
        return ""
    text = " ".join(job.reason.sentences[1:])
    return text if len(text) <= LONGEST_NEXT else f"{text[: LONGEST_NEXT - 1]}\u2026"


def describe_end(state: State, why: str) -> str:
    """Return how a job ended, to follow its name."""
    how = {"finished": "has finished", "failed": "has failed", "cancelled": "was cancelled"}[state]
    return f"{how}: {why}" if why else how
