"""The fleet: the agents of all jobs in pools of declared engines. It observes them and carries out orders."""

import asyncio
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import NamedTuple, assert_never

import msgspec

from elastane.cluster.controller.agents.agent_job import AgentJob, locate_run_dir, read_agent_job
from elastane.cluster.controller.agents.decisions import (
    add_last_words,
    choose_agent_workers,
    choose_asks,
    choose_deadlines,
    compute_grace_s,
    compute_setback_s,
    has_failed,
    has_stayed,
    judge_loss,
    judge_start,
    lacks_reason,
    must_hear,
    takes_part,
    update_agent,
)
from elastane.cluster.controller.agents.engines import Engines, OpenEngine
from elastane.cluster.controller.agents.gangs import choose_new_agents, choose_stranded, hash_shape
from elastane.cluster.controller.agents.site import Site, locate_agent_log, read_log_end
from elastane.cluster.controller.agents.stored_agent import StoredAgent, StoredRun, format_agent_id
from elastane.cluster.controller.store import agent_rows, documents, elastic_job_rows, jobs, nodes
from elastane.cluster.controller.store.database import Store
from elastane.cluster.engines.kinds import choose_controller_url, find_queue
from elastane.cluster.engines.run_line import RunLine, WorkerCounts, ask_runs, count_workers
from elastane.cluster.nouns.agents import AgentAsk, AgentEnd, AgentGang, SeenAgent
from elastane.cluster.nouns.config import Config
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
from elastane.cluster.nouns.job_tickets import JobTicket, encode_job_ticket
from elastane.cluster.nouns.pools import Pool
from elastane.run.connections.endpoint import has_kept_endpoint
from elastane.run.nouns.attempts import AttemptOutcome
from elastane.run.nouns.control import Answer
from elastane.run.nouns.rundir import RunDir

AS_ROOT = (
    "it would run the job as root; this controller runs jobs as users of their teams (elastane up --run-as)"
)
END_AGAIN_S = 10.0
"""An agent that has not left is asked again after this time."""


class _View(msgspec.Struct, frozen=True):
    """What one cycle knows of the store.

    Args:
        pools: those of engines, by name.
        agents: those that are not gone, by job.
        jobs: that run on agents; None: the job has ended, or its record cannot be read.
        runs: the newest attempts, by job.
        gone: agents that are gone of gangs with others that are not, by job.
    """

    config: Config
    pools: Mapping[str, Pool]
    agents: Mapping[str, tuple[StoredAgent, ...]]
    jobs: Mapping[str, AgentJob | None]
    runs: Mapping[str, StoredRun]
    gone: Mapping[str, tuple[StoredAgent, ...]]


class _Trouble(NamedTuple):
    """Why a job's agents fail, how often they have in a row, and until when no more are asked for."""

    why: str
    failures: int
    until_s: float


class Fleet:
    """Runs jobs on agents, as `elastane.cluster.nouns.engine.JobEngine` says, for the jobs in its pools.

    All that it must know is in the store, in the engines, and in the runs. What it remembers beyond that only
    spares them repeated requests.

    Args:
        site: where agents find the controller.
        clock: seconds since 1970.
        open_line: opens the line to the run in a directory.
    """

    def __init__(
        self,
        store: Store,
        site: Site,
        open_engine: OpenEngine,
        clock: Callable[[], float] = time.time,
        *,
        open_line: Callable[[RunDir], RunLine] = RunLine,
    ) -> None:
        self._store = store
        self._site = site
        self._clock = clock
        self._engines = Engines(open_engine)
        self._open_line = open_line
        self._cluster = ""
        self._lines: dict[str, RunLine] = {}
        self._counts: dict[str, WorkerCounts] = {}
        self._heard: dict[str, frozenset[str]] = {}
        """The machines that the coordinator of each job hears."""
        self._strangers: Mapping[str, list[AgentEnd]] = {}
        self._ends: dict[int, tuple[float, float]] = {}
        """By number of the agent: when it was last asked to end, and with which grace, in seconds."""
        self._troubles: dict[str, _Trouble] = {}

    def list_jobs(self) -> frozenset[str]:
        """Return the names of the jobs that run on agents now, or will."""
        return frozenset(self._read_view().jobs)

    def explain_unclear_jobs(self) -> Mapping[str, str]:
        """Return the jobs of which it is not known where they run, and why, because a pool cannot be read."""
        with self._store.begin_read() as tx:
            _, lost = documents.read_declared_documents(tx)
            return {
                job: f"the record of pool {document.name} cannot be read: {document.why}"
                for document in lost
                if document.kind == "pools"
                for job in jobs.list_jobs_in_pool(tx, document.name)
            }

    # -- observing -------------------------------------------------------------------------------------------

    async def observe(self) -> Mapping[str, Observation]:
        """Observe all jobs that run on agents; the store says which they are."""
        view = self._read_view()
        await self._engines.update(view.config, self._cluster)
        for job in self._lines.keys() - view.jobs.keys():
            await self._lines.pop(job).close()
        running = {job: self._get_line(job) for job in view.jobs if _is_present(view, job)}
        seen, answers = await asyncio.gather(self._engines.list_agents(), ask_runs(running))
        self._report_absence()
        self._counts = {job: count_workers(answer) for job, answer in answers.items()}
        self._heard = {job: frozenset(node.name for node in answer.nodes) for job, answer in answers.items()}
        self._record_answers(view, answers)
        view = msgspec.structs.replace(view, agents=self._record_agents(view, seen))
        return {job: self._build_observation(job, view) for job in view.jobs}

    def _report_absence(self) -> None:
        """Let the health of the controller say which engines are away."""
        condition, away = self._store.soundness.condition, self._engines.list_away()
        if not away:
            condition.clear("engines", log=False)
            return
        names = f"engine{'s' * (len(away) > 1)} {' and '.join(away)}"
        verb = "do" if len(away) > 1 else "does"
        condition.report(
            "engines",
            f"{names} {verb} not answer, so nothing is started or ended there; the jobs there train on",
            f"elastane doctor {away[0]}",
            log=False,
        )

    def _read_view(self) -> _View:
        with self._store.begin_read() as tx:
            # One that cannot be read is left out: its agents are not observed, so nothing is concluded.
            config, _ = documents.read_declared_documents(tx)
            pools = {pool.name: pool for pool in config.pools or () if pool.engine}
            living = agent_rows.list_living_agents(tx)
            agents = _group(living)
            gangs = {agent.gang for agent in living if agent.gang}
            gone = _group(agent_rows.list_gone_members(tx, gangs))
            runs = {run.job: run for run in agent_rows.list_agent_runs(tx)}
            granted = {job for pool in pools for job in jobs.list_jobs_in_pool(tx, pool)}
            found = jobs.find_jobs(tx, granted.union(agents, runs))
        needs: dict[str, AgentJob | None] = dict.fromkeys(agents)
        needs |= {
            job.name: read_agent_job(job, self._site.home)
            for job in found
            if job.name in agents
            or job.grant.workers.keys() & pools.keys()
            # It has not been judged yet, or not been settled.
            or (job.name in runs and (runs[job.name].attempt > job.attempts or job.has_ended))
        }
        if (needs or config.engines) and not self._cluster:
            with self._store.begin_write() as tx:
                self._cluster = agent_rows.get_cluster_id(tx)
        return _View(config, pools, agents, needs, runs, gone)

    def _get_line(self, job: str) -> RunLine:
        if job not in self._lines:
            self._lines[job] = self._open_line(RunDir(locate_run_dir(self._site.home, job)))
        return self._lines[job]

    def _record_answers(self, view: _View, answers: Mapping[str, Answer]) -> None:
        """Record which runs answer from now on, so that other agents can join them."""
        new = [
            run
            for job, run in view.runs.items()
            if not run.answers and job in answers and any(node.port for node in answers[job].nodes)
        ]
        if new:
            with self._store.begin_write() as tx:
                for run in new:
                    if agent_rows.find_agent_run(tx, run.job) == run:
                        agent_rows.write_agent_run(tx, msgspec.structs.replace(run, answers=True))

    def _record_agents(
        self, view: _View, seen: Mapping[str, Sequence[SeenAgent]]
    ) -> Mapping[str, tuple[StoredAgent, ...]]:
        """Record what engines show of agents, and return those that are not gone, by job."""
        now_s = self._clock()
        shown = {(name, agent.id): agent for name, found in seen.items() for agent in found}
        for agent in (agent for some in view.agents.values() for agent in some):
            key = agent.engine, self._get_id(agent)
            if key in shown and lacks_reason(agent, shown[key]):
                log = read_log_end(self._site.home, shown[key].id)
                shown[key] = add_last_words(shown[key], log)

        def update(agent: StoredAgent) -> StoredAgent:
            if agent.engine not in seen:
                return agent
            is_heard = self._is_heard(agent, view.runs.get(agent.job))
            return update_agent(
                agent, shown.get((agent.engine, self._get_id(agent))), now_s, is_heard=is_heard
            )

        agents = [agent for some in view.agents.values() for agent in some]
        if any(update(agent) != agent for agent in agents):
            with self._store.begin_write() as tx:
                # Agents may have arrived since they were read.
                before = agent_rows.list_living_agents(tx)
                agents = [update(agent) for agent in before]
                agent_rows.write_agents(tx, set(agents) - set(before))
                forgotten = agent_rows.forget_agents(tx, now_s)
                agent_rows.forget_ended_agent_runs(tx)
            for id_ in (format_agent_id(self._cluster, number) for number in forgotten):
                locate_agent_log(self._site.home, id_).unlink(missing_ok=True)
            for agent in filter(has_failed, agents):
                where = f" on {agent.node}" if agent.node else ""
                self._note_failure(agent.job, f"an agent{where} has ended: {agent.why}", now_s)
        living = [agent for agent in agents if not agent.is_gone]
        self._strangers = self._engines.list_strangers(seen, map(self._get_id, living))
        self._ends = {
            agent.number: self._ends[agent.number] for agent in living if agent.number in self._ends
        }
        return _group(living)

    def _is_heard(self, agent: StoredAgent, run: StoredRun | None) -> bool:
        """Return whether the run of an agent's job hears it."""
        if run is None or not takes_part(agent, run):
            return False
        # The machine on which a run began has no name there.
        node = "" if run.beginner == agent.number else self._get_id(agent)
        return node in self._heard.get(agent.job, ())

    def _note_failure(self, job: str, why: str, now_s: float) -> None:
        """Ask for no more agents of a job for a while, because some could not be started or have failed."""
        failures = 1 + (self._troubles[job].failures if job in self._troubles else 0)
        self._troubles[job] = _Trouble(why, failures, now_s + compute_setback_s(failures))

    def _build_observation(self, name: str, view: _View) -> Observation:
        line, run, job = self._get_line(name), view.runs.get(name), view.jobs[name]
        agents, counts = view.agents.get(name, ()), self._counts.get(name, WorkerCounts())
        present = _is_present(view, name)
        if run is not None and not present and has_kept_endpoint(line.run_dir):
            # All machines were lost, so none has withdrawn it.
            line.run_dir.endpoint.unlink(missing_ok=True)
        held: dict[str, int] = defaultdict(int)
        for agent in agents:
            if agent.has_arrived:
                held[agent.pool] += agent.workers
        staying = [agent for agent in agents if agent.is_wanted]
        wanted, now_s = sum(agent.workers for agent in staying), self._clock()
        is_whole = job is not None and counts.members == wanted == sum(job.wanted.values())
        if is_whole and all(has_stayed(agent, now_s) for agent in staying):
            self._troubles.pop(name, None)
        return msgspec.structs.replace(
            line.observe(name, counts),
            attempt=0 if run is None else run.attempt,
            present=present,
            agent=present,
            outcome=self._find_outcome(run, present=present),
            # The run follows its agents, and they follow the grant.
            target=None if counts.workers is None else wanted,
            held=dict(held) if present else {},
            run_dir="" if run is None else str(line.run_dir.root),
        )

    def _find_outcome(self, run: StoredRun | None, *, present: bool) -> AttemptOutcome | None:
        """Return how the newest attempt of a job has ended; None: it has not, or nothing is known."""
        if run is None:
            return None
        line = self._get_line(run.job)
        outcome = line.read_outcome(run.attempt)
        if outcome is not None or present:
            return outcome
        has_begun = line.attempt is not None and line.attempt.number == run.attempt
        with self._store.begin_read() as tx:
            if has_begun:
                last = agent_rows.find_last_agent(tx, run.job, run.attempt)
                return None if last is None else judge_loss(last)
            beginner = agent_rows.find_agent(tx, run.beginner)
        return None if beginner is None else judge_start(beginner)

    # -- orders ----------------------------------------------------------------------------------------------

    async def carry_out(self, orders: Sequence[Order]) -> Mapping[str, str]:
        """Carry out orders, and bring the agents of every job to its grant."""
        answers = await asyncio.gather(*map(self._carry_out, orders))
        refused = {order.job: why for order, why in zip(orders, answers, strict=True) if why}
        view, now_s = self._read_view(), self._clock()
        leavers, view = self._record_deadlines(view, now_s)
        await self._end_agents(leavers, now_s)
        starting = {order.job for order in orders if isinstance(order, StartAttempt)}
        refused |= await self._start_agents(view, starting, now_s)
        await self._correct_sizes(view)
        return refused

    async def _carry_out(self, order: Order) -> str:
        match order:
            case StartAttempt():
                # Its agents follow its grant.
                return self._troubles[order.job].why if order.job in self._troubles else ""
            case ResizeJob() | EvictWorkers():
                # Agents beyond the grant are ended when their time is up.
                return ""
            case DrainWorker():
                return await self._get_line(order.job).carry_out(order)
            case StopAttempt():
                return await self._stop(order)
            case KillAttempt():
                self._dismiss(order.job, attempt=order.attempt, at_once=True)
                return ""
            case SettleJob():
                self._dismiss(order.job, at_once=True)
                with self._store.begin_write() as tx:
                    agent_rows.forget_agent_run(tx, order.job)
                return ""
            case _:
                assert_never(order)

    async def _stop(self, order: StopAttempt) -> str:
        line = self._get_line(order.job)
        if line.read_outcome(order.attempt) is not None:
            # Its agents are ending.
            return ""
        refusal = await line.carry_out(order)
        if refusal and line.read_outcome(order.attempt) is None:
            # A notice to its agents stops the run too.
            self._dismiss(order.job, attempt=order.attempt)
        return refusal

    def _dismiss(self, name: str, *, attempt: int | None = None, at_once: bool = False) -> None:
        """Let the agents of a job leave: those that take part in an attempt; None: all."""
        now_s = self._clock()
        with self._store.begin_write() as tx:
            found = jobs.find_jobs(tx, [name])
            job = read_agent_job(found[0], self._site.home) if found else None
            by_s = now_s if at_once or job is None else job.choose_deadline(now_s)
            living = agent_rows.list_living_agents(tx, name)
            agent_rows.set_deadlines(
                tx, {agent.number: by_s for agent in living if attempt is None or agent.attempt == attempt}
            )

    def _record_deadlines(self, view: _View, now_s: float) -> tuple[list[StoredAgent], _View]:
        """Record which agents should leave from now on.

        Returns:
            All that must hear of it, and the view with these deadlines: the next decisions must not count an
            agent that leaves.
        """
        with self._store.begin_read() as tx:
            leaving = {node.name for node in nodes.list_nodes(tx) if node.wanted != "use"}
        found: dict[int, float] = {}
        leavers: list[StoredAgent] = []
        after: dict[str, tuple[StoredAgent, ...]] = {}
        for name, agents in view.agents.items():
            run = view.runs.get(name)
            # Nodes are named per engine.
            here = {agent.node for agent in agents if f"{agent.engine}.{agent.node}" in leaving}
            is_over = self._find_outcome(run, present=True) is not None
            job = view.jobs[name]
            found |= choose_deadlines(agents, job, run, now_s, is_over=is_over, leaving_nodes=here)
            stranded = choose_stranded(job, agents, view.gone.get(name, ()), found.keys())
            found |= dict.fromkeys(stranded, now_s)
            after[name] = tuple(
                msgspec.structs.replace(agent, leave_by_s=found.get(agent.number, agent.leave_by_s))
                for agent in agents
            )
            leavers += (
                agent
                for agent in after[name]
                if agent.leave_by_s is not None and must_hear(agent, run, now_s, is_over=is_over)
            )
        if found:
            with self._store.begin_write() as tx:
                agent_rows.set_deadlines(tx, found)
        return leavers, msgspec.structs.replace(view, agents=after)

    async def _end_agents(self, leavers: Iterable[StoredAgent], now_s: float) -> None:
        ends: dict[str, list[AgentEnd]] = defaultdict(list)
        for agent in leavers:
            grace_s = compute_grace_s(agent, now_s)
            last_s, last_grace_s = self._ends.get(agent.number, (float("-inf"), float("inf")))
            if now_s - last_s >= END_AGAIN_S or (grace_s == 0 < last_grace_s):
                self._ends[agent.number] = now_s, grace_s
                ends[agent.engine].append(AgentEnd(self._get_id(agent), grace_s))
        for engine, strangers in self._strangers.items():
            ends[engine] += strangers
        self._strangers = {}
        await self._engines.end_agents(ends)

    async def _start_agents(self, view: _View, starting: Collection[str], now_s: float) -> Mapping[str, str]:
        """Ask for the agents that jobs lack; return why some were not started, by job."""
        asks: dict[str, list[StoredAgent]] = defaultdict(list)
        for name, job in view.jobs.items():
            trouble = self._troubles.get(name)
            if job is None or not job.wanted or (trouble is not None and now_s < trouble.until_s):
                continue
            run, agents = view.runs.get(name), view.agents.get(name, ())
            grows = _is_present(view, name) and self._find_outcome(run, present=True) is None
            if name in starting or grows:
                for agent in (*agents, *self._add_agents(job, agents, view, now_s)):
                    if agent.state == "asked" and agent.is_wanted:
                        asks[agent.engine].append(agent)
        found = await asyncio.gather(*(self._ask_engine(*ask, view, now_s) for ask in asks.items()))
        return {job: why for refused in found for job, why in refused.items()}

    def _add_agents(
        self, job: AgentJob, agents: Sequence[StoredAgent], view: _View, now_s: float
    ) -> list[StoredAgent]:
        """Record the agents that a job lacks, and return them."""
        if not choose_asks(job, agents, {}).keys() & view.pools.keys():
            return []
        with self._store.begin_read() as tx:
            template = elastic_job_rows.map_agent_options(tx, {job.name}).get(job.name, {})
        # The template of an ElasticJob is that of a pod with one worker.
        sizes = {
            pool: 1 if template else choose_agent_workers(job.spec, view.pools[pool])
            for pool in job.wanted.keys() & view.pools.keys()
        }
        shapes = _map_shapes(job, view, template)
        chosen = choose_new_agents(job, agents, view.gone.get(job.name, ()), sizes, shapes)
        missing = [new for new in chosen if new.pool in view.pools]
        if not missing:
            return []
        found: list[StoredAgent] = []
        begun: dict[tuple[str, str], int] = {}
        with self._store.begin_write() as tx:
            for new in missing:
                agent = StoredAgent(
                    job=job.name,
                    engine=view.pools[new.pool].engine,
                    pool=new.pool,
                    workers=new.workers,
                    devices=new.workers * job.spec.worker_devices,
                    key=agent_rows.make_key(),
                    gang=new.gang or (begun.get((new.pool, new.shape), 0) if new.gang_size else 0),
                    gang_size=new.gang_size,
                    shape=new.shape,
                    asked_s=now_s,
                )
                found.append(agent_rows.insert_agent(tx, agent))
                if new.gang_size and not new.gang:
                    begun[new.pool, new.shape] = found[-1].gang
        return found

    async def _ask_engine(
        self, engine: str, agents: Sequence[StoredAgent], view: _View, now_s: float
    ) -> Mapping[str, str]:
        """Ask one engine for agents; return why some were not started, by job."""
        if self._site.isolates:
            return dict.fromkeys((agent.job for agent in agents), f"engine {engine}: {AS_ROOT}")
        locate_agent_log(self._site.home, "").parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with self._store.begin_read() as tx:
            options = elastic_job_rows.map_agent_options(tx, {agent.job for agent in agents})
        refusals = await self._engines.start_agents(
            engine, [self._build_ask(agent, view, options.get(agent.job, {})) for agent in agents]
        )
        with self._store.begin_write() as tx:
            for agent in agents:
                refusal = refusals.get(self._get_id(agent))
                if refusal is None:
                    agent_rows.record_request(tx, agent.number)
                elif refusal.for_ever:
                    agent_rows.record_refusal(tx, agent.number, refusal.why, now_s)
        refused = {
            agent.job: f"engine {engine}: {refusals[id_].why}"
            for agent in agents
            if (id_ := self._get_id(agent)) in refusals
        }
        for job, why in refused.items():
            self._note_failure(job, why, now_s)
        return refused

    def _build_ask(self, agent: StoredAgent, view: _View, options: Mapping[str, str]) -> AgentAsk:
        job, id_ = view.jobs[agent.job], self._get_id(agent)
        assert job is not None, "agents are asked for only for living jobs"
        declared = {document.name: document for document in view.config.engines or ()}
        engine = declared.get(agent.engine)
        ticket = JobTicket(
            choose_controller_url(engine, self._site.url), id_, agent.key, self._site.certificate
        )
        shares_home = engine is not None and engine.shares_home
        return AgentAsk(
            id=id_,
            job=agent.job,
            pool=view.pools[agent.pool].options,
            options=options,
            devices=agent.devices,
            grace_s=job.grace_s,
            image=job.spec.image,
            home=str(self._site.home) if shares_home else "",
            log=str(locate_agent_log(self._site.home, id_)) if shares_home else "",
            gang=AgentGang(agent.gang, agent.gang_size) if agent.gang else None,
            ticket=encode_job_ticket(ticket),
        )

    async def _correct_sizes(self, view: _View) -> None:
        """Tell runs their size that have fewer workers than machines with slots.

        A run grows with each machine that joins, but not beyond the most workers with which it began.
        """
        for name, agents in view.agents.items():
            job, run = view.jobs[name], view.runs.get(name)
            target = self._counts.get(name, WorkerCounts()).target
            joined = [agent for agent in agents if agent.is_wanted and self._is_heard(agent, run)]
            if job is None or run is None or target is None:
                continue
            workers = min(sum(agent.workers for agent in joined), sum(job.wanted.values()))
            if target < workers:
                grown = ResizeJob(job=name, attempt=run.attempt, workers=workers, limits=job.limits)
                await self._get_line(name).carry_out(grown)

    async def observe_nodes(self) -> Sequence[ObservedNode]:
        """Return the machines in pools of engines."""
        with self._store.begin_read() as tx:
            (config, _), known = documents.read_declared_documents(tx), nodes.list_nodes(tx)
            living = agent_rows.list_living_agents(tx)
        before = [ObservedNode(name=node.name, pool=node.pool, devices=node.devices) for node in known]
        held = Counter[tuple[str, str]]()
        for agent in living:
            held[f"{agent.engine}.{agent.node}", agent.pool] += agent.devices
        return await self._engines.list_nodes(config, before, held)

    async def close(self) -> None:
        """Close the connections; jobs continue."""
        for line in self._lines.values():
            await line.close()
        await self._engines.close()

    def _get_id(self, agent: StoredAgent) -> str:
        return format_agent_id(self._cluster, agent.number)


def _is_present(view: _View, job: str) -> bool:
    """Return whether some agent may have processes of the newest attempt of a job."""
    return any(takes_part(agent, view.runs.get(job)) for agent in view.agents.get(job, ()))


def _group(agents: Iterable[StoredAgent]) -> dict[str, tuple[StoredAgent, ...]]:
    """Return agents by job."""
    found: dict[str, list[StoredAgent]] = defaultdict(list)
    for agent in agents:
        found[agent.job].append(agent)
    return {job: tuple(some) for job, some in found.items()}


def _map_shapes(job: AgentJob, view: _View, template: Mapping[str, str]) -> dict[str, str]:
    """Return the shape of the agents of a job, by its own options, in each of its pools that has a queue."""
    engines = {document.name: document for document in view.config.engines or ()}
    declared = {
        pool: (engines[view.pools[pool].engine], view.pools[pool].options)
        for pool in job.wanted
        if pool in view.pools and view.pools[pool].engine in engines
    }
    return {
        pool: hash_shape([engine.options, options, template, job.spec.image, job.spec.worker_devices])
        for pool, (engine, options) in declared.items()
        if find_queue(engine, options, template)
    }
