"""The engine: it runs the programs of Slurm, and keeps nothing between two calls."""

import asyncio
import os
import re
import time
from collections.abc import Callable, Iterable, Mapping, Sequence

from elastane.cluster.engines.commands import CommandAnswer
from elastane.cluster.engines.decoded_options import decode_pools
from elastane.cluster.engines.slurm import job_queue, machines
from elastane.cluster.engines.slurm.job_queue import QueuedJob
from elastane.cluster.engines.slurm.options import SlurmOptions, decode_slurm_pool
from elastane.cluster.engines.slurm.programs import ROWS, SlurmPrograms
from elastane.cluster.engines.slurm.submission import build_submission, name_job
from elastane.cluster.nouns.agents import (
    AgentAsk,
    AgentEnd,
    AgentId,
    Away,
    SeenAgent,
    SeenNode,
    StartRefusal,
    belongs_to,
)
from elastane.common.errors import BadInput
from elastane.common.safe_text import fold_text

JOBS_AT_ONCE = 200
"""The most jobs that one command names."""
REMEMBERED = "now-7days"
"""How far back the accounting is searched for an agent that is to start."""
NOTICE = ("--batch", "--signal=TERM")
"""Signals the batch process, which is the agent, and not its workers, which would end too soon."""
STILL_PENDING = "--state=PENDING"
"""Spares a job that has begun since it was seen: it gets a notice the next time."""
NOTHING_TO_END = ("Invalid job id specified", "Job/step already completing or completed")
_FAILED_JOB = re.compile(r"job id ([0-9]{1,18})(?:_[0-9]+)?: (.*)")


class SlurmEngine:
    """An `elastane.cluster.nouns.agents.AgentEngine` with batch jobs as agents.

    It sees and ends jobs of its own user only, with names that have the cluster's id. Slurm forgets a job
    some time after its end (MinJobAge, by default five minutes); its agent is then absent.

    Args:
        cluster: id of the cluster, with which the ids of its agents begin.
        now: returns the seconds since 1970.
    """

    def __init__(
        self, cluster: str, options: SlurmOptions | None = None, *, now: Callable[[], float] = time.time
    ) -> None:
        self._cluster = cluster
        self._options = options or SlurmOptions()
        self._programs = SlurmPrograms(self._options)
        self._now = now

    async def list_agents(self) -> Sequence[SeenAgent] | Away:
        """Return the agents of all jobs that Slurm shows."""
        jobs = await self._list_jobs()
        if isinstance(jobs, Away):
            return jobs
        chosen = job_queue.choose_jobs(jobs)
        return tuple(job_queue.describe_agent(job) for _, job in sorted(chosen.items()))

    async def start_agents(self, asks: Sequence[AgentAsk]) -> Mapping[AgentId, StartRefusal]:
        """Submit a job for each agent that has none, see `elastane.cluster.nouns.agents`.

        An earlier call may have submitted a job without an answer in time. So the jobs are listed first, and
        a job that Slurm has accepted late, beside a second one, is cancelled.
        """
        if not asks:
            return {}
        known = await self._list_started(asks)
        if isinstance(known, Away):
            return {ask.id: StartRefusal(known.why) for ask in asks}
        wanted = {ask.id: ask for ask in asks if ask.id not in known}
        refusals = await asyncio.gather(*map(self._start, wanted.values()))
        return {ask: refusal for ask, refusal in zip(wanted, refusals, strict=True) if refusal is not None}

    async def end_agents(self, ends: Sequence[AgentEnd]) -> Mapping[AgentId, str]:
        """Give agents a notice, or cancel the jobs of those that get no grace, and of those that wait.

        The engine has no clock: call it again with a grace of 0 at the deadline. Repeat a notice: one that
        comes while the script begins is lost, or ends the job. Slurm ends a cancelled job with SIGTERM to all
        of its processes, and with SIGKILL some seconds later (KillWait, by default 30).
        """
        if not ends:
            return {}
        jobs = await self._list_jobs()
        if isinstance(jobs, Away):
            return {end.id: jobs.why for end in ends}
        graces_s = {end.id: end.grace_s for end in ends}
        living = [job for job in jobs if job.agent in graces_s and job.stage != "gone"]
        now = [job for job in living if graces_s[job.agent] <= 0]
        later = [job for job in living if graces_s[job.agent] > 0]
        failures = await asyncio.gather(
            self._cancel(now, ()),
            self._cancel([job for job in later if job.stage == "pending"], (STILL_PENDING,)),
            self._cancel([job for job in later if job.stage == "running"], NOTICE),
        )
        return failures[0] | failures[1] | failures[2]

    async def list_nodes(self, pools: Mapping[str, Mapping[str, str]]) -> Sequence[SeenNode] | Away:
        """Return the machines of pools on which jobs can begin; a pool with invalid options has none.

        A machine in two pools is listed, and its devices are counted, in both.
        """
        decoded = decode_pools(pools, decode_slurm_pool)
        jobs = await self._list_jobs()
        if isinstance(jobs, Away):
            return jobs
        lists = await asyncio.gather(*map(self._programs.list_machines, decoded.values()))
        found: list[SeenNode] = []
        for (name, pool), listed in zip(decoded.items(), lists, strict=True):
            if isinstance(listed, Away):
                return listed
            found += machines.list_pool_nodes(name, pool, listed, jobs)
        return found

    async def close(self) -> None:
        """Do nothing: no resource outlives a call."""

    async def _list_jobs(self) -> tuple[QueuedJob, ...] | Away:
        answer = await self._programs.ask_rows(
            len(job_queue.COLUMNS),
            "squeue",
            *ROWS,
            # A job in a partition that becomes hidden from this user is not gone.
            "--all",
            "--states=all",
            f"--user={os.geteuid()}",
            f"--Format={job_queue.FORMAT}",
        )
        if isinstance(answer, Away):
            return answer
        return job_queue.parse_queue(answer, self._cluster)

    async def _list_started(self, asks: Sequence[AgentAsk]) -> frozenset[AgentId] | Away:
        """Return the agents that have or had a job; cancel the second jobs of agents."""
        jobs = await self._list_jobs()
        if isinstance(jobs, Away):
            return jobs
        await self._cancel(job_queue.list_doubles(jobs), ())
        known = frozenset(job.agent for job in jobs)
        left = [ask.id for ask in asks if ask.id not in known and belongs_to(ask.id, self._cluster)]
        if not self._options.accounting or not left:
            return known
        remembered = await self._list_remembered(left)
        return remembered if isinstance(remembered, Away) else known | remembered

    async def _list_remembered(self, agents: Iterable[AgentId]) -> frozenset[AgentId] | Away:
        """Return those of some agents of which the accounting knows a job that Slurm has not refused."""
        answer = await self._programs.ask_rows(
            len(job_queue.ACCOUNTING),
            "sacct",
            "--noheader",
            "--parsable2",
            "--allocations",
            f"--user={os.geteuid()}",
            f"--starttime={REMEMBERED}",
            f"--name={','.join(map(name_job, agents))}",
            f"--format={job_queue.ACCOUNTING_FORMAT}",
        )
        if isinstance(answer, Away):
            return answer
        return job_queue.parse_accounting(answer, self._cluster)

    async def _start(self, ask: AgentAsk) -> StartRefusal | None:
        """Submit the job of an agent; return why that failed, or None."""
        if not belongs_to(ask.id, self._cluster):
            return StartRefusal(f"{ask.id} is not an agent of cluster {self._cluster}", for_ever=True)
        try:
            pool = decode_slurm_pool(ask.pool)
            submission = build_submission(ask, pool, self._options, self._now())
        except BadInput as error:
            return StartRefusal(error.what, for_ever=True)
        return await self._programs.submit(submission)

    async def _cancel(self, jobs: Sequence[QueuedJob], how: tuple[str, ...]) -> dict[AgentId, str]:
        """Run ``scancel`` for some jobs; return why it failed, for the agents of those with which it did."""
        failures: dict[AgentId, str] = {}
        for first in range(0, len(jobs), JOBS_AT_ONCE):
            part = jobs[first : first + JOBS_AT_ONCE]
            answer = await self._programs.run("scancel", *how, *(str(job.id) for job in part))
            if isinstance(answer, Away):
                failures |= {job.agent: answer.why for job in part}
            elif answer.code:
                failures |= _attribute_failures(answer, part)
        return failures


def _attribute_failures(answer: CommandAnswer, jobs: Sequence[QueuedJob]) -> dict[AgentId, str]:
    """Return why ``scancel`` failed, for the agent of each job with which it did."""
    said = {int(number): why for number, why in _FAILED_JOB.findall(answer.errors)}
    if not said:
        return {job.agent: answer.complaint for job in jobs}
    return {
        job.agent: fold_text(said[job.id])
        for job in jobs
        if job.id in said and not said[job.id].startswith(NOTHING_TO_END)
    }
