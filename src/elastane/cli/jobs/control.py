"""``elastane pause``, ``resume`` and ``cancel``: hold, continue or end jobs."""

import sys
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Annotated, NamedTuple

from elastane.cli.command import AsJson, JobNames, open_console, print_json
from elastane.cli.options import flag
from elastane.cli.terminal import write_paragraphs
from elastane.cli.timestamps import describe_job_stop_time, localize_timestamps
from elastane.cluster.client.context import connect
from elastane.cluster.nouns.job_records import ENDED
from elastane.cluster.nouns.rest import Job

if TYPE_CHECKING:
    from elastane.cluster.client.cluster import Cluster

RESUMES = "resumes as soon as its minimum of workers fits"

Wait = Annotated[bool, flag("Return once the job has the new state.", "--wait")]
LOOK_S = 0.5


def pause(jobs: JobNames, wait: Wait = False, as_json: AsJson = False) -> None:
    """Stop JOB with a checkpoint and give its devices to other jobs.

    The job stops at its next commit and keeps its place in the order of jobs.
    An unmodified script has time to save. Continue it with elastane resume.

    With --json, one line per job.
    """
    goal = Goal(describe_pause, lambda now: now.state == "paused")
    apply_to_jobs(jobs, lambda cluster, job: cluster.jobs.pause(job), goal, wait=wait, as_json=as_json)


def resume(jobs: JobNames, wait: Wait = False, as_json: AsJson = False) -> None:
    """Continue a paused JOB from its checkpoint.

    The job starts as soon as its minimum of workers fits.

    With --json, one line per job.
    """
    goal = Goal(lambda _: RESUMES, is_training)
    apply_to_jobs(jobs, lambda cluster, job: cluster.jobs.resume(job), goal, wait=wait, as_json=as_json)


def cancel(jobs: JobNames, wait: Wait = False, as_json: AsJson = False) -> None:
    """End JOB permanently at its next commit. Its files stay.

    An unmodified script has time to save.

    With --json, one line per job.
    """
    goal = Goal(lambda job: f"ends {describe_job_stop_time(job.spec)}", lambda now: now.state in ENDED)
    apply_to_jobs(jobs, lambda cluster, job: cluster.jobs.cancel(job), goal, wait=wait, as_json=as_json)


class Goal(NamedTuple):
    """The state that a command wants for a job, and what it prints about the job until then."""

    meanwhile: Callable[[Job], str]
    done: Callable[[Job], bool]


def apply_to_jobs(
    names: Sequence[str], ask: "Callable[[Cluster, str], Job]", goal: Goal, *, wait: bool, as_json: bool
) -> None:
    """Send a request for each job in turn, then wait for all of them if wanted.

    Raises:
        ElastaneError: the request for one job failed; the jobs before it were asked, those after it were not.
    """
    with connect() as cluster:
        asked = []
        for name in dict.fromkeys(names):
            found = ask(cluster, name)
            asked.append(found)
            if not wait:
                print_state(found, goal.meanwhile(found), as_json=as_json)
            elif not (goal.done(found) or as_json):
                print_progress(f"{found.name} {goal.meanwhile(found)}")
        for found in asked if wait else ():
            now = wait_for_job(cluster, found, goal.done, (lambda _: None) if as_json else print_progress)
            print_state(now, goal.meanwhile(now), as_json=as_json)


def describe_pause(job: Job) -> str:
    return f"pauses {describe_job_stop_time(job.spec)}, and keeps its state"


def is_training(job: Job) -> bool:
    return job.state == "running" and bool(job.observed.held)


def print_progress(words: str) -> None:
    """Print a message on stderr while the command waits."""
    write_paragraphs(words, sys.stderr)


def print_state(job: Job, meanwhile: str, *, as_json: bool) -> None:
    """Print the state of a job, or the state that it will have."""
    if as_json:
        print_json(job)
        return
    settled = {
        "paused": f"{job.name} is paused",
        "finished": f"{job.name} has finished",
        "failed": f"{job.name} has failed: {job.why}",
        "cancelled": f"{job.name} is cancelled",
    }
    if job.state == "running" and job.wanted == "run":
        meanwhile = f"runs with {job.workers} worker{'s' * (job.workers != 1)}"
    open_console().print(settled.get(job.state, f"{job.name} {meanwhile}"), markup=False)


def wait_for_job(
    cluster: "Cluster", asked: Job, done: Callable[[Job], bool], report: Callable[[str], None]
) -> Job:
    """Poll a job until a condition holds or the job has ended, and return it.

    Meanwhile, report why the job waits, each time that the reasons change. A job that is to stop only waits
    for a commit, so nothing is reported for it. The reasons of ``asked``, the job at the time of the request,
    are already known and not reported.
    """
    shown = asked.explained.sentences
    while True:
        job = cluster.jobs.get(asked.name)
        if done(job) or job.state in ENDED:
            return job
        if job.wanted == "run" and job.explained.sentences != shown:
            shown = job.explained.sentences
            report(localize_timestamps(" ".join(shown)))
        time.sleep(LOOK_S)
