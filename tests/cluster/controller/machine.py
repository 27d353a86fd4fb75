"""A machine with devices, agents and workers in memory: an engine observes it, and orders change it.

It outlives controllers. `MachineEngine` is an `elastane.cluster.nouns.engine.JobEngine` for it, which
remembers as little as a real one.
"""

from dataclasses import dataclass, field

from elastane.cluster.nouns.engine import (
    DrainWorker,
    EvictWorkers,
    JobProgress,
    KillAttempt,
    Observation,
    ObservedNode,
    ResizeJob,
    SettleJob,
    StartAttempt,
    StopAttempt,
)
from elastane.run.nouns.attempts import AttemptOutcome

STOPPED = AttemptOutcome(code=130, why="stopped")
FINISHED = AttemptOutcome(code=0, why="all steps are made")
BEGINNING_TURNS = 2
LEAVING_TURNS = 2


@dataclass
class Agent:
    """One attempt.

    Args:
        attempt: its number.
        target: the wanted number of workers.
        workers: existing processes.
        age: cycles since its start; it answers from the second on.
        leaving: cycles until the workers beyond the target are gone.
        stopping: it has received an order to stop.
    """

    attempt: int
    target: int
    workers: int
    age: int = 0
    leaving: int = LEAVING_TURNS
    stopping: bool = False


@dataclass
class Job:
    agent: Agent | None = None
    attempt: int = 0
    outcome: AttemptOutcome | None = None
    step: int = 0
    begun: list[int] = field(default_factory=list)


class Machine:
    """A machine that raises an AssertionError if it is asked for more than it has.

    Args:
        devices: one for each worker.
        steps: of every job.
    """

    def __init__(self, devices: int, steps: int) -> None:
        self.devices = devices
        self._steps = steps
        self.jobs: dict[str, Job] = {}
        self.unsettled: set[str] = set()
        self.stubborn: set[str] = set()
        """Jobs whose workers do not leave when they are asked to."""

    @property
    def used(self) -> int:
        agents = (job.agent for job in self.jobs.values())
        return sum(max(agent.workers, agent.target) for agent in agents if agent is not None)

    def check(self) -> None:
        assert self.used <= self.devices, f"{self.used} of {self.devices} devices: {self.jobs}"

    def pass_time(self) -> None:
        """Let all agents and workers live for one cycle."""
        for name, job in self.jobs.items():
            if job.agent is not None:
                self._live(name, job, job.agent)
        self.check()

    def _live(self, name: str, job: Job, agent: Agent) -> None:
        agent.age += 1
        if agent.age < BEGINNING_TURNS:
            return
        if agent.stopping:
            self._end(job, STOPPED)
            return
        if agent.workers > agent.target and name not in self.stubborn:
            agent.leaving -= 1
            if not agent.leaving:
                agent.workers, agent.leaving = agent.target, LEAVING_TURNS
        agent.workers = max(agent.workers, agent.target)
        job.step += 1
        if job.step >= self._steps:
            self._end(job, FINISHED)

    def _end(self, job: Job, outcome: AttemptOutcome | None) -> None:
        job.agent, job.outcome = None, outcome

    def start(self, name: str, attempt: int, workers: int) -> None:
        job = self.jobs.setdefault(name, Job())
        if job.agent is not None or job.attempt >= attempt:
            return
        self.unsettled.add(name)
        job.agent, job.attempt, job.outcome = Agent(attempt, workers, workers), attempt, None
        job.begun.append(attempt)
        self.check()

    def agent_of(self, name: str, attempt: int) -> Agent | None:
        agent = self.jobs[name].agent if name in self.jobs else None
        return agent if agent is not None and agent.attempt == attempt else None

    def kill(self, name: str, attempt: int) -> None:
        if self.agent_of(name, attempt) is not None:
            self._end(self.jobs[name], None)


class MachineEngine:
    """The engine of a controller for a machine.

    Args:
        machine: the machine.
        told: called after each order.
    """

    def __init__(self, machine: Machine, told=lambda: None) -> None:
        self._machine = machine
        self._told = told

    async def observe(self, jobs):
        return {name: self._seen(name) for name in {*jobs, *self._machine.unsettled}}

    def _seen(self, name: str) -> Observation:
        job = self._machine.jobs.get(name)
        if job is None:
            return Observation(job=name)
        agent = job.agent
        answers = agent is not None and agent.age >= BEGINNING_TURNS
        return Observation(
            job=name,
            attempt=job.attempt,
            present=agent is not None,
            agent=agent is not None,
            outcome=job.outcome,
            workers=agent.workers if answers else None,
            target=agent.target if answers else None,
            progress=JobProgress(step=job.step, steps=100, samples_per_step=1),
            run_dir=f"/runs/{name}",
        )

    async def carry_out(self, orders):
        for order in orders:
            self._carry_out(order)
            self._told()
        return {}

    def _carry_out(self, order) -> None:
        machine = self._machine
        match order:
            case StartAttempt(job=job, attempt=attempt, workers=workers):
                machine.start(job, attempt, workers)
            case SettleJob(job=job):
                machine.unsettled.discard(job)
            case KillAttempt(job=job, attempt=attempt):
                machine.kill(job, attempt)
            case ResizeJob(job=job) | EvictWorkers(job=job) | StopAttempt(job=job):
                if agent := machine.agent_of(job, order.attempt):
                    self._tell(agent, order, stubborn=job in machine.stubborn)
            case DrainWorker():
                raise NotImplementedError
        machine.check()

    def _tell(self, agent: Agent, order: ResizeJob | EvictWorkers | StopAttempt, *, stubborn: bool) -> None:
        match order:
            case ResizeJob(workers=workers):
                agent.target = workers
            case EvictWorkers():
                agent.workers = min(agent.workers, agent.target)
            case StopAttempt():
                agent.stopping = not stubborn

    async def observe_nodes(self):
        return (ObservedNode(name="here", pool="local", devices=self._machine.devices),)

    async def close(self) -> None:
        pass
