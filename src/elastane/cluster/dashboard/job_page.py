"""The page of one job."""

import time
from collections.abc import Mapping

from elastane.cluster.dashboard.feed import ClusterFeed
from elastane.cluster.dashboard.rendering import PageContent
from elastane.cluster.dashboard.worker_rows import ACTIVITY_WORDS, group_workers
from elastane.cluster.nouns.job_records import ENDED
from elastane.cluster.nouns.rest import Job, Me


def estimate_end(job: Job, now_s: float) -> float | None:
    """Return the time at which a job will be done at its present speed; None: that is unknown."""
    left = job.observed.remaining
    if job.state != "running" or left is None or not job.samples_per_s:
        return None
    return now_s + left / job.samples_per_s


def may_change(me: Me, job: Job) -> bool:
    """Return whether to offer changes of a job to a reader; the controller decides about each."""
    if me.role == "operator":
        return True
    if me.team not in {job.team, "*"}:
        return False
    return me.role == "team-admin" or (me.role == "submitter" and me.user == job.user)


def build_job_page(feed: ClusterFeed, name: str, params: Mapping[str, str]) -> PageContent:
    watched = feed.watch_job(name)
    sight = watched.look()
    job, now_s = sight.job, time.time()
    process = params.get("log", "")
    if process not in sight.processes:
        process = sight.processes[0] if sight.processes else ""
    drawn = watched.pictures.draw(sight.recorded) if sight.recorded is not None else None
    return PageContent(
        title=job.name,
        template="job.html",
        parts=(
            "notices",
            "job_head",
            *(("run_chart", "run_workers") if drawn else ()),
            "job_history",
            *(("run_history", "run_tables") if drawn else ()),
            "job_log",
        ),
        facts={
            "sight": feed.sight,
            "now_s": now_s,
            "job": job,
            "spec": job.spec,
            "job_sight": sight,
            "ended": job.state in ENDED,
            "end_s": estimate_end(job, now_s),
            "spent": job.compute_spent(now_s),
            "egress_spent": job.egress_spent,
            "may_change": may_change(feed.sight.me, job),
            "priorities": feed.sight.priorities,
            "process": process,
            "log": watched.read_log(process) if process else "",
            "has_run": drawn is not None,
            "machines": group_workers(sight.workers, drawn["worker_shares"], drawn["virtual_ranks"])
            if drawn
            else (),
            "activity_words": ACTIVITY_WORDS,
            **(drawn or {}),
        },
    )
