"""The local engine: it reads run directories, asks coordinators, and starts and kills agents."""

import asyncio
import contextlib
import errno
import os
import signal
import sys
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import assert_never

from elastane.agent import process_identity
from elastane.agent.presence import list_present_processes, move_presence_aside
from elastane.api.attempts import AttemptOutcome
from elastane.api.control import Answer, Ask, AskDrain, AskEvict, AskResize, AskStatus, AskStop
from elastane.api.errors import BadInput, ElastaneError
from elastane.api.observations import Observation, ObservedNode
from elastane.api.orders import (
    DrainWorker,
    EvictWorkers,
    KillAttempt,
    Order,
    ResizeJob,
    SettleJob,
    StartAttempt,
    StopAttempt,
)
from elastane.api.run_as import GPU_CLAIMS, RunAs
from elastane.api.rundir import RunDir
from elastane.attempts.run_directory import claim_run_directory
from elastane.client.owner_rights import use_owner_rights
from elastane.engines.local.accounts import Account, find_team_account
from elastane.engines.local.agent_process import AgentProcess, FailedStart, start_agent
from elastane.engines.local.engine_directories import EngineDirectories
from elastane.engines.local.job_environment import build_job_environment
from elastane.engines.local.job_watcher import JobWatcher
from elastane.engines.local.preflight import check_job_files, explain_environment_too_large
from elastane.engines.local.user_isolation import JobCannotStart, get_gpu_claims_folder, start_agent_as_user
from elastane.engines.local.worker_counts import count_workers

ANSWER_S = 1.0
ASKED_AT_ONCE = 64
"""The most simultaneous questions; the answers of a thousand could not be read within a second."""
NOT_FOR_THIS_ENGINE = 2
AGENT = (sys.executable, "-P", "-m", "elastane.attempts")


class LocalEngine:
    """An `elastane.engines.engine.Engine` for this machine.

    Args:
        home: its jobs run in ``runs`` in this directory.
        own: the engine's environment; jobs get the part of it that every process needs.
        agent: command of the agent, up to its options.
        node: this machine; None: pools declare their devices themselves.
        run_as: the system users that jobs run as; only root can start processes of other users.
    """

    def __init__(
        self,
        home: Path,
        *,
        own: Mapping[str, str] = os.environ,
        agent: Sequence[str] = AGENT,
        node: ObservedNode | None = None,
        run_as: RunAs = RunAs(),  # noqa: B008 - frozen
    ) -> None:
        self._places = EngineDirectories(home.absolute())
        self._own = own
        self._agent = agent
        self._node = node
        self._run_as = run_as
        self._watched: dict[str, JobWatcher] = {}
        self._started: dict[str, AgentProcess | FailedStart] = {}

    # -- observing ------------------------------------------------------------------------------------------

    async def observe(self, jobs: Collection[str]) -> Mapping[str, Observation]:
        """Observe jobs, see `elastane.engines.engine.Engine`; a silent coordinator costs at most a second."""
        names = {*jobs, *self._places.list_unsettled()}
        await self._forget(self._watched.keys() - names)
        for name in names:
            self._look(name)
        asked = [name for name, watched in self._watched.items() if watched.agent]
        turns = asyncio.Semaphore(ASKED_AT_ONCE)

        async def status(name: str) -> Answer | None:
            async with turns:
                return await self._ask(self._watched[name], AskStatus())

        answered = dict(zip(asked, await asyncio.gather(*map(status, asked)), strict=True))
        return {name: self._observation(name, answered.get(name)) for name in names}

    def _look(self, job: str) -> None:
        watched = self._watched.get(job)
        if watched is None:
            run_dir = self._places.run_dir(job)
            # A directory that cannot be read may have a run.
            with contextlib.suppress(OSError), use_owner_rights(run_dir.root):
                if not run_dir.presence.exists():
                    return
            watched = self._watched[job] = JobWatcher(run_dir, isolated=self._run_as.isolates)
        with use_owner_rights(watched.run_dir.root):
            watched.look()

    def _observation(self, job: str, answer: Answer | None) -> Observation:
        watched, started = self._watched.get(job), self._started.get(job)
        attempt = watched.attempt if watched is not None else None
        number = 0 if attempt is None else attempt.number
        present = watched is not None and watched.present
        if started is not None and not started.is_running and not present and started.is_newer_than(number):
            failure = started.failure
            if failure is not None:
                return Observation(job=job, attempt=started.attempt, outcome=failure)
        if watched is None:
            return Observation(job=job)
        count = count_workers(answer)
        with use_owner_rights(watched.run_dir.root):
            progress = watched.progress()
        return Observation(
            job=job,
            attempt=number,
            present=present,
            agent=watched.agent,
            outcome=None if attempt is None else attempt.outcome,
            workers=count.workers,
            members=count.members,
            target=count.target,
            fixed=count.ending,
            lingering_s=watched.lingering_s,
            progress=progress,
            run_dir=str(watched.run_dir.root),
        )

    async def _forget(self, jobs: Iterable[str]) -> None:
        for job in list(jobs):
            await self._watched.pop(job).coordinator.close()

    # -- orders ---------------------------------------------------------------------------------------------

    async def carry_out(self, orders: Sequence[Order]) -> Mapping[str, str]:
        """Carry out orders; see `elastane.engines.engine.Engine.carry_out`."""
        refusals = await asyncio.gather(*map(self._try_carry_out, orders))
        return {order.job: why for order, why in zip(orders, refusals, strict=True) if why}

    async def _try_carry_out(self, order: Order) -> str:
        try:
            return await self._carry_out(order)
        except (OSError, ValueError) as error:
            # A damaged directory, or a job with a name that no file can have, must not stop the orders of
            # other jobs.
            return str(error)

    async def _carry_out(self, order: Order) -> str:
        match order:
            case StartAttempt():
                return await self._start(order)
            case ResizeJob(workers=workers, limits=limits):
                return await self._tell(order, AskResize(workers=workers, limits=limits))
            case DrainWorker(worker=worker):
                return await self._tell(order, AskDrain(worker=worker))
            case EvictWorkers():
                return await self._tell(order, AskEvict())
            case StopAttempt(why=why):
                return await self._tell(order, AskStop(who="controller", why=why))
            case KillAttempt():
                return self._kill(order)
            case SettleJob(job=job):
                self._places.settle(job)
                self._started.pop(job, None)
                return ""
            case _:
                assert_never(order)

    async def _start(self, order: StartAttempt) -> str:
        job, before = order.job, self._started.get(order.job)
        if before is not None and before.attempt >= order.attempt and before.is_running:
            return ""
        watched = self._watch_job(job)
        if watched is not None and watched.present:
            return "processes of the job still exist and hold its run directory"
        run_dir = self._places.run_dir(job)
        noted = self._places.is_unsettled(job)
        with use_owner_rights(run_dir.root):
            belongs_to_another = not noted and _belongs_to_another(run_dir, watched, order)
        if belongs_to_another:
            # The outcome and the checkpoints of that run would count as the job's.
            why = f"{run_dir.root} has a run of another job; submit this job under another name"
            return self._refuse_start(order, why)
        if watched is not None and watched.attempt is not None and watched.attempt.number >= order.attempt:
            return ""
        try:
            account = find_team_account(self._run_as, order.spec.team)
            if account is None:
                self._started[job] = self._start_as_own_user(order, run_dir)
            else:
                self._started[job] = await self._start_as_account(account, order, run_dir)
        except JobCannotStart as error:
            return self._refuse_start(order, str(error))
        except ElastaneError as error:
            return str(error)
        except OSError as error:
            if error.errno == errno.E2BIG:
                return self._refuse_start(order, str(explain_environment_too_large(job)))
            raise
        return ""

    def _start_as_own_user(self, order: StartAttempt, run_dir: RunDir) -> AgentProcess:
        self._places.check_ownership(order.job)
        try:
            run, working_dir = check_job_files(order.job, order.spec)
        except BadInput as error:
            raise JobCannotStart(error.what, means=error.means, do=error.do) from error
        self._places.mark_unsettled(order.job)
        if not run_dir.run.exists():
            with claim_run_directory(run, run_dir.root):
                pass
        environment = build_job_environment(order.spec.env, self._own)
        return start_agent(run_dir, order, self._agent, environment, working_dir)

    async def _start_as_account(self, account: Account, order: StartAttempt, run_dir: RunDir) -> AgentProcess:
        self._places.mark_unsettled(order.job)
        environment = build_job_environment(order.spec.env, self._own, account)
        environment.setdefault(GPU_CLAIMS, str(get_gpu_claims_folder(self._places.home)))
        return await asyncio.to_thread(start_agent_as_user, account, run_dir, order, self._agent, environment)

    def _refuse_start(self, order: StartAttempt, why: str) -> str:
        self._started[order.job] = FailedStart(
            order.attempt, AttemptOutcome(code=NOT_FOR_THIS_ENGINE, why=why)
        )
        return why

    async def _tell(self, order: ResizeJob | DrainWorker | EvictWorkers | StopAttempt, question: Ask) -> str:
        watched = self._watch_job(order.job)
        if (
            watched is None
            or not watched.agent
            or watched.attempt is None
            or watched.attempt.number != order.attempt
        ):
            return f"attempt {order.attempt} is not running"
        answer = await self._ask(watched, question)
        if answer is None:
            return f"its coordinator did not answer within {ANSWER_S:g} s"
        return answer.why

    def _kill(self, order: KillAttempt) -> str:
        watched = self._watch_job(order.job)
        number = 0 if watched is None or watched.attempt is None else watched.attempt.number
        if watched is None or number != order.attempt:
            return f"attempt {order.attempt} is not running"
        if watched.agent and watched.attempt is not None:
            # Its workers end with the agent.
            _kill_agent(watched.attempt.pid, watched.attempt.started)
        else:
            _kill_present(watched.run_dir, watched.user)
        return ""

    def _watch_job(self, job: str) -> JobWatcher | None:
        self._look(job)
        return self._watched.get(job)

    async def _ask(self, watched: JobWatcher, question: Ask) -> Answer | None:
        return await watched.coordinator.ask(question, ANSWER_S)

    def nodes(self) -> Sequence[ObservedNode]:
        return () if self._node is None else (self._node,)

    async def close(self) -> None:
        """Close the connections; jobs continue."""
        await self._forget(self._watched)


def _belongs_to_another(run_dir: RunDir, watched: JobWatcher | None, order: StartAttempt) -> bool:
    """Return whether the directory has a run that was not started for this job."""
    if not run_dir.run.exists():
        return False
    attempt = None if watched is None else watched.attempt
    return not run_dir.attempt.exists() or (attempt is not None and attempt.began_s < order.submitted_s)


def _kill_agent(pid: int, start: int) -> None:
    process = process_identity.open_process(pid, start)
    if process is not None:
        try:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(process, signal.SIGKILL)
        finally:
            os.close(process)


def _kill_present(run_dir: RunDir, user: int | None) -> None:
    with use_owner_rights(run_dir.root):
        for pid in list_present_processes(run_dir, user):
            if pid != os.getpid():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        move_presence_aside(run_dir)
