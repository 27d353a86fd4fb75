"""A small engine, and a cluster around it: store, API, loop and scheduler are the real ones.

The world does exactly what `elastane.cluster.nouns.engine.JobEngine` promises: jobs take a while to come and
go, train at a given speed, and report their progress. Nothing in it takes real time; `Cluster.pass_time`
moves the clock, a second and a cycle at a time.
"""

import asyncio
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

import msgspec

from elastane.cluster.controller.loop import Loop
from elastane.cluster.controller.planning import Scheduler
from elastane.cluster.controller.snapshot import take_cluster_snapshot
from elastane.cluster.controller.store import jobs
from elastane.cluster.engines.pace import Speed
from elastane.cluster.nouns.engine import (
    RECENT_STEPS,
    DrainWorker,
    EvictWorkers,
    JobProgress,
    KillAttempt,
    Observation,
    ObservedNode,
    Order,
    ResizeJob,
    SettleJob,
    StartAttempt,
    StopAttempt,
)
from elastane.cluster.nouns.rest import Job
from elastane.cluster.nouns.usage import Usage
from elastane.cluster.scheduler.explanations import explain_decision
from elastane.cluster.scheduler.plan import plan
from elastane.run.nouns.attempts import AttemptOutcome

BATCH = 64
"""Samples of a step."""


@dataclass
class Running:
    """One job on the machine of this world.

    Args:
        steps: until its end; 0: it never ends.
        virtual_ranks: fixed number; 0: unknown.
        speed: steps a second of one worker.
        serial: part of a step that is not divided among workers.
        first_loss: of the first step; each later step has ``decay`` times the loss of the previous one.
        decay: see ``first_loss``.
        arrive_s: time that a worker takes to start.
        leave_s: time that a worker takes to leave.
        most: largest number of workers that arrive.
        hang: processes of the other workers exist, and never join.
        answers: its coordinator answers.
        speeds: measured, by number of workers.
        slowed: by number of workers, the factor by which steps take longer now.
    """

    name: str
    steps: int = 0
    virtual_ranks: int = 0
    speed: float = 1.0
    serial: float = 0.0
    first_loss: float = 2.0
    decay: float = 0.99
    arrive_s: float = 1.0
    leave_s: float = 1.0
    most: int = 1000
    hang: bool = False
    answers: bool = True
    attempt: int = 0
    agent: bool = False
    outcome: AttemptOutcome | None = None
    target: int = 0
    workers: int = 0
    made: float = 0.0
    saved_s: float | None = None
    stopping: bool = False
    busy_s: float = 0.0
    speeds: dict[int, Speed] = field(default_factory=dict)
    slowed: dict[int, float] = field(default_factory=dict)
    begun: list[int] = field(default_factory=list)

    @property
    def step(self) -> int:
        return int(self.made)

    def loss(self, step: int) -> float:
        return self.first_loss * self.decay**step

    def seen(self, run_dir: str) -> Observation:
        step, told = self.step, self.agent and self.answers
        recent = [self.loss(one) for one in range(step - RECENT_STEPS + 1, step + 1)]
        return Observation(
            job=self.name,
            attempt=self.attempt,
            present=self.agent,
            agent=self.agent,
            outcome=self.outcome,
            workers=(max(self.workers, self.target) if self.hang else self.workers) if told else None,
            members=self.workers if told else None,
            target=self.target if told else None,
            progress=JobProgress(
                step=step,
                loss=self.loss(step) if step else None,
                recent_loss=sum(recent) / RECENT_STEPS if step >= RECENT_STEPS else None,
                steps=self.steps,
                samples_per_step=BATCH,
                virtual_ranks=self.virtual_ranks,
                speeds=tuple((n, one.samples_per_s) for n, one in sorted(self.speeds.items())),
                weights=tuple(one.compute_weight(0.0) for _, one in sorted(self.speeds.items())),
                saved_s=self.saved_s,
            ),
            run_dir=run_dir,
        )

    def end(self, outcome: AttemptOutcome | None) -> None:
        self.agent, self.outcome, self.workers, self.stopping = False, outcome, 0, False

    def go_on(self, seconds: float, now_s: float) -> None:
        if not self.agent:
            return
        if self.workers:
            rate = self.speed / (self.serial + (1 - self.serial) / self.workers)
            rate /= self.slowed.get(self.workers, 1.0)
            known = self.speeds.get(self.workers, Speed())
            self.speeds[self.workers] = known.add_step(rate * BATCH * seconds, seconds, now_s)
            self.made += rate * seconds
        if self.steps and self.made >= self.steps:
            self.made = self.steps
            self.end(AttemptOutcome(0, f"all {self.steps} steps are made"))
        elif self.stopping:
            self.saved_s = now_s
            self.end(AttemptOutcome(130, "stopped"))
        elif self.workers != min(self.target, self.most):
            more = min(self.target, self.most) > self.workers
            self.busy_s += seconds
            if self.busy_s >= (self.arrive_s if more else self.leave_s):
                self.workers += 1 if more else -1
                self.busy_s = 0.0


class World:
    """An `elastane.cluster.nouns.engine.JobEngine` with a known state.

    Args:
        where: parent of the run directories.
        nodes: that it sees.
    """

    def __init__(self, where, nodes: Sequence[ObservedNode] = ()) -> None:
        self.where = where
        self.seen_nodes = list(nodes)
        self.habits: dict[str, dict] = {}
        """How each job is, by name; others are as `Running` has it."""
        self.running: dict[str, Running] = {}
        self.unsettled: set[str] = set()
        self.orders: list[Order] = []
        self.deaf: set[str] = set()
        """Jobs whose coordinators no order comes through to."""
        self.full = ""
        """Why nothing starts now; empty: it does."""

    async def observe(self, jobs: Collection[str]) -> Mapping[str, Observation]:
        names = {*jobs, *self.unsettled}
        return {
            name: self.running[name].seen(str(self.where / name))
            if name in self.running
            else Observation(job=name)
            for name in names
        }

    async def carry_out(self, orders: Sequence[Order]) -> Mapping[str, str]:
        self.orders += orders
        return {order.job: why for order in orders if (why := self._obey(order))}

    def _obey(self, order: Order) -> str:
        if isinstance(order, StartAttempt):
            return self._start(order)
        if isinstance(order, SettleJob):
            self.unsettled.discard(order.job)
            return ""
        # A signal needs no answer.
        if order.job in self.deaf and not isinstance(order, KillAttempt):
            return "its coordinator did not answer"
        job = self.running.get(order.job)
        if job is None or not job.agent or job.attempt != order.attempt:
            return f"attempt {order.attempt} is not running"
        match order:
            case ResizeJob(workers=workers):
                job.target = workers
            case DrainWorker():
                job.target -= 1
            case EvictWorkers():
                job.workers = min(job.workers, job.target)
            case StopAttempt():
                job.stopping = True
            case KillAttempt():
                job.end(None)
        return ""

    def _start(self, order: StartAttempt) -> str:
        name = order.job
        if self.full:
            return self.full
        if name not in self.running:
            self.running[name] = Running(name, **self.habits.get(name, {}))
            (self.where / name).mkdir(parents=True)
        job = self.running[name]
        self.unsettled.add(name)
        if job.agent or order.attempt <= job.attempt:
            return "it is there already"
        job.attempt, job.agent, job.outcome, job.busy_s = order.attempt, True, None, 0.0
        job.target, job.workers, job.stopping = order.workers, 0, False
        job.begun.append(order.attempt)
        return ""

    async def observe_nodes(self) -> Sequence[ObservedNode]:
        return self.seen_nodes

    async def close(self) -> None:
        pass

    def go_on(self, seconds: float, now_s: float) -> None:
        for job in self.running.values():
            job.go_on(seconds, now_s)


class Cluster:
    """A controller without a socket, and its world.

    Args:
        api: over its store, with the real scheduler; see `conftest.Api`.
        world: has its jobs.
        engine: of the loop; None: the world.
    """

    def __init__(self, api, world: World, engine=None) -> None:
        self.api, self.world, self.clock = api, world, api.clock
        scheduler = Scheduler(plan=plan, explain=explain_decision)
        self.loop = Loop(api.store, engine or world, scheduler, api.clock)
        self.counts_devices = False
        """Add up `held`, which costs a query in each cycle."""
        self.held: dict[tuple[str, str], float] = {}
        """Device-seconds by job and pool, added up beside the accounts."""

    def pass_time(self, seconds: float) -> None:
        """Run this many cycles, a second apart."""
        for _ in range(int(seconds)):
            self.clock.now_s += 1
            if self.counts_devices:
                self._add(1.0)
            self.world.go_on(1.0, self.clock())
            self.run_cycle()

    def until(self, true, seconds: float = 600) -> None:
        """Run cycles until a condition holds."""
        for _ in range(int(seconds)):
            if true():
                return
            self.pass_time(1)
        raise AssertionError(f"not within {seconds} s")

    def run_cycle(self) -> None:
        if self.api.woken:
            self.api.woken = 0
            self.loop._mark_stale()
        asyncio.run(self.loop.run_cycle())

    def uses(self) -> dict[tuple[str, str], int]:
        """Return the devices by job and pool: the larger of the granted and the observed ones."""
        found: dict[tuple[str, str], int] = {}
        with self.api.store.begin_read() as tx:
            for job in jobs.list_planned_jobs(tx):
                granted, held = job.grant.workers, job.observed.held
                for pool in granted.keys() | held.keys():
                    seen = held[pool].workers if pool in held else 0
                    devices = job.spec.worker_devices
                    found[job.name, pool] = max(granted.get(pool, 0), seen) * devices
        return found

    def _add(self, seconds: float) -> None:
        for key, devices in self.uses().items():
            self.held[key] = self.held.get(key, 0.0) + devices * seconds

    # -- as people see it ----------------------------------------------------------------------------------

    def job(self, name: str) -> Job:
        with self.api.store.begin_read() as tx:
            found = jobs.find_job(tx, name)
        assert found is not None
        return found

    def workers(self, name: str) -> int:
        """Return the number of workers that train now."""
        return self.world.running[name].workers if name in self.world.running else 0

    def state(self, name: str):
        """Return the job as the scheduler sees it."""
        with self.api.store.begin_read() as tx:
            taken = take_cluster_snapshot(tx, self.clock())
        return next(one for one in taken.snapshot.jobs if one.name == name)

    def usage(self, *by: str) -> tuple:
        query = "&".join(f"by={one}" for one in by)
        answer = self.api.user("operator").get(f"/usage?from=0&{query}")
        return msgspec.json.decode(answer.content, type=Usage).rows
