"""The local engine: it reads run directories, asks coordinators, and starts and kills agents."""

import asyncio
import contextlib
import errno
import os
import signal
import sys
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import assert_never

import msgspec

from elastane.cluster.engines.local.accounts import Account, build_job_environment, find_team_account
from elastane.cluster.engines.local.agent_process import AgentProcess, FailedStart, start_agent
from elastane.cluster.engines.local.job_code import locate_code_archive, place_code
from elastane.cluster.engines.local.job_watcher import JobWatcher
from elastane.cluster.engines.local.preflight import (
    check_job_files,
    claim_job_run,
    explain_environment_too_large,
    refuse_run_of_another,
)
from elastane.cluster.engines.local.user_isolation import (
    JobCannotStart,
    get_gpu_claims_folder,
    start_agent_as_user,
)
from elastane.cluster.engines.run_line import RunOrder, ask_runs, count_workers
from elastane.cluster.nouns.engine import (
    DrainWorker,
    EvictWorkers,
    KillAttempt,
    Observation,
    ObservedNode,
    Order,
    ResizeJob,
    SettleJob,
    StartAttempt,
    StopAttempt,
)
from elastane.cluster.nouns.run_as import RunAs
from elastane.common import process_identity
from elastane.common.errors import BadInput, ElastaneError
from elastane.common.permissions import use_owner_rights
from elastane.run.agent.environment import GPU_CLAIMS
from elastane.run.agent.presence import list_present_processes, move_presence_aside
from elastane.run.machines.joining.shipped_code import CODE
from elastane.run.nouns.attempts import AttemptOutcome
from elastane.run.nouns.control import Answer
from elastane.run.nouns.rundir import RunDir

CANNOT_START = 2
OWN_USER = RunAs()
AWAIT_END_S = 1.0
"""How long to wait for the end of an agent that has left its run directory. Usually it ends at once; without
the wait it could remain as a zombie."""
AGENT_COMMAND = (sys.executable, "-P", "-m", "elastane.run.attempts")


class EngineDirectories(msgspec.Struct, frozen=True):
    """The paths in ``home``.

    ``runs/JOB`` is a job's run directory. The file ``unsettled/JOB`` exists from before the first attempt
    until the job's end is recorded elsewhere, so that thousands of settled jobs are never read again.
    """

    home: Path

    def get_run_dir(self, job: str) -> RunDir:
        return RunDir(self.home / "runs" / job)

    def get_code_archive(self, order: StartAttempt) -> Path | None:
        """Return where the code of a job is; None: it has brought none with it."""
        return locate_code_archive(self.home, order.spec.code) if order.spec.code else None

    def list_unsettled(self) -> Collection[str]:
        try:
            return {entry.name for entry in (self.home / "unsettled").iterdir()}
        except FileNotFoundError:
            return ()

    def is_unsettled(self, job: str) -> bool:
        return (self.home / "unsettled" / job).exists()

    def mark_unsettled(self, job: str) -> None:
        marker = self.home / "unsettled" / job
        marker.parent.mkdir(parents=True, exist_ok=True)
        marker.touch()

    def check_ownership(self, job: str) -> None:
        """Check that the run directory, if it is there, belongs to the user of this engine."""
        root = self.get_run_dir(job).root
        try:
            owner, own_user = root.stat().st_uid, root.parent.stat().st_uid
        except OSError:
            return
        if owner != own_user:
            raise BadInput(
                f"the run directory {root} belongs to user {owner}, but the job would run as user {own_user}",
                means="it ran as another user before, so its files cannot be trusted; the job waits",
                do="start the controller with that user again (elastane up --run-as), "
                "or cancel the job and submit it under another name",
            )

    def settle(self, job: str) -> None:
        with suppress(FileNotFoundError):
            (self.home / "unsettled" / job).unlink()


class LocalEngine:
    """An `elastane.cluster.nouns.engine.JobEngine` for this machine.

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
        agent: Sequence[str] = AGENT_COMMAND,
        node: ObservedNode | None = None,
        run_as: RunAs = OWN_USER,
    ) -> None:
        self._directories = EngineDirectories(home.absolute())
        self._own = own
        self._agent = agent
        self._node = node
        self._run_as = run_as
        self._watchers: dict[str, JobWatcher] = {}
        self._started: dict[str, AgentProcess | FailedStart] = {}

    # -- observing ------------------------------------------------------------------------------------------

    async def observe(self, jobs: Collection[str]) -> Mapping[str, Observation]:
        """Observe jobs, see `JobEngine`; a silent coordinator costs at most a second."""
        names = {*jobs, *self._directories.list_unsettled()}
        await self._forget(self._watchers.keys() - names)
        for name in names:
            self._update(name)
        running = {name: watcher for name, watcher in self._watchers.items() if watcher.agent}
        answers = await ask_runs(running)
        return {name: self._build_observation(name, answers.get(name)) for name in names}

    def _update(self, job: str) -> None:
        watcher = self._watchers.get(job)
        if watcher is None:
            run_dir = self._directories.get_run_dir(job)
            # A directory that cannot be read may have a run.
            with contextlib.suppress(OSError), use_owner_rights(run_dir.root):
                if not run_dir.presence.exists():
                    return
            watcher = self._watchers[job] = JobWatcher(run_dir, isolated=self._run_as.isolates)
        with use_owner_rights(watcher.run_dir.root):
            watcher.update()

    def _build_observation(self, job: str, answer: Answer | None) -> Observation:
        watcher, started = self._watchers.get(job), self._started.get(job)
        attempt = watcher.attempt if watcher is not None else None
        number = 0 if attempt is None else attempt.number
        present = watcher is not None and watcher.present
        if started is not None and not started.is_running and not present and started.is_newer_than(number):
            failure = started.failure
            if failure is not None:
                return Observation(job=job, attempt=started.attempt, outcome=failure)
        if watcher is None:
            return Observation(job=job)
        return msgspec.structs.replace(
            watcher.observe(job, count_workers(answer)),
            attempt=number,
            present=present,
            agent=watcher.agent,
            outcome=None if attempt is None else attempt.outcome,
            lingering_s=watcher.lingering_s,
        )

    async def _forget(self, jobs: Iterable[str]) -> None:
        for job in list(jobs):
            await self._watchers.pop(job).close()

    # -- orders ---------------------------------------------------------------------------------------------

    async def carry_out(self, orders: Sequence[Order]) -> Mapping[str, str]:
        """Carry out orders; see `elastane.cluster.nouns.engine.JobEngine.carry_out`."""
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
            case ResizeJob() | DrainWorker() | EvictWorkers() | StopAttempt():
                return await self._pass_on(order)
            case KillAttempt():
                return self._kill(order)
            case SettleJob(job=job):
                self._directories.settle(job)
                agent = self._started.pop(job, None)
                if isinstance(agent, AgentProcess):
                    await asyncio.to_thread(agent.wait, AWAIT_END_S)
                return ""
            case _:
                assert_never(order)

    async def _start(self, order: StartAttempt) -> str:
        job, before = order.job, self._started.get(order.job)
        if before is not None and before.attempt >= order.attempt and before.is_running:
            return ""
        watcher = self._watch_job(job)
        if watcher is not None and watcher.present:
            return "processes of the job still exist in its run directory"
        run_dir = self._directories.get_run_dir(job)
        newest = None if watcher is None else watcher.attempt
        if not self._directories.is_unsettled(job):
            try:
                with use_owner_rights(run_dir.root):
                    refuse_run_of_another(run_dir, newest, order.submitted_s, is_claimed=False)
            except BadInput as error:
                return self._refuse_start(order, str(error))
        if newest is not None and newest.number >= order.attempt:
            return ""
        try:
            account = find_team_account(self._run_as, order.spec.team)
            if account is None:
                self._started[job] = await self._start_as_own_user(order, run_dir)
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

    async def _start_as_own_user(self, order: StartAttempt, run_dir: RunDir) -> AgentProcess:
        self._directories.check_ownership(order.job)
        archive = self._directories.get_code_archive(order)
        try:
            code = None
            if archive is not None:
                # Reading and writing it may take seconds.
                code = await asyncio.to_thread(
                    place_code, run_dir.root / CODE, order.spec.code, lambda: archive.open("rb")
                )
            run, working_dir = check_job_files(order.job, order.spec, code=code)
        except BadInput as error:
            raise JobCannotStart(error.what, means=error.means, do=error.do) from error
        self._directories.mark_unsettled(order.job)
        claim_job_run(run_dir, run, linked=True)
        environment = build_job_environment(order.spec.env, self._own)
        return start_agent(run_dir, order, self._agent, environment, working_dir)

    async def _start_as_account(self, account: Account, order: StartAttempt, run_dir: RunDir) -> AgentProcess:
        self._directories.mark_unsettled(order.job)
        environment = build_job_environment(order.spec.env, self._own, account)
        environment.setdefault(GPU_CLAIMS, str(get_gpu_claims_folder(self._directories.home)))
        archive = self._directories.get_code_archive(order)
        return await asyncio.to_thread(
            start_agent_as_user, account, run_dir, order, self._agent, environment, archive
        )

    def _refuse_start(self, order: StartAttempt, why: str) -> str:
        self._started[order.job] = FailedStart(order.attempt, AttemptOutcome(code=CANNOT_START, why=why))
        return why

    async def _pass_on(self, order: RunOrder) -> str:
        """Pass an order on to the coordinator of the attempt that it names."""
        watcher = self._watch_job(order.job)
        if (
            watcher is None
            or not watcher.agent
            or watcher.attempt is None
            or watcher.attempt.number != order.attempt
        ):
            return f"attempt {order.attempt} is not running"
        return await watcher.carry_out(order)

    def _kill(self, order: KillAttempt) -> str:
        watcher = self._watch_job(order.job)
        number = 0 if watcher is None or watcher.attempt is None else watcher.attempt.number
        if watcher is None or number != order.attempt:
            return f"attempt {order.attempt} is not running"
        if watcher.agent and watcher.attempt is not None:
            # Its workers end with the agent.
            _kill_agent(watcher.attempt.pid, watcher.attempt.started)
        else:
            _kill_present(watcher.run_dir, watcher.user)
        return ""

    def _watch_job(self, job: str) -> JobWatcher | None:
        self._update(job)
        return self._watchers.get(job)

    async def observe_nodes(self) -> Sequence[ObservedNode]:
        return () if self._node is None else (self._node,)

    async def close(self) -> None:
        """Close the connections; jobs continue."""
        await self._forget(self._watchers)


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
