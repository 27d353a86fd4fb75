"""An engine of agents without machines, and runs that these agents begin and join through the real API.

Nothing takes real time: `Yard.go_on` moves agents and runs on by a second.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import version

import msgspec

from elastane.cluster.engines.run_line import RunLine
from elastane.cluster.nouns.agents import AgentAsk, AgentEnd, Away, SeenAgent, SeenNode, StartRefusal
from elastane.cluster.nouns.arrivals import Begin, Instruction, Join, NotWanted
from elastane.cluster.nouns.engine import JobProgress
from elastane.cluster.nouns.job_tickets import decode_job_ticket, encode_credentials
from elastane.run.nouns.attempts import Attempt, AttemptOutcome
from elastane.run.nouns.control import Answer, Ask, AskResize, AskStatus, AskStop, ProcessInfo
from elastane.run.nouns.membership import NodeAddress


@dataclass
class YardAgent:
    """One agent of the yard.

    Args:
        wait_s: until it begins.
        leave_s: until it has left after a notice; None: it has had none.
    """

    ask: AgentAsk
    node: str
    wait_s: float
    state: str = "pending"
    leave_s: float | None = None
    exit_code: int | None = None
    told: Instruction | None = None


@dataclass
class YardRun:
    """One run: the agents that take part, by node name; and what workers have sent to other sites."""

    number: int
    spec_steps: int
    members: dict[str, YardAgent] = field(default_factory=dict)
    steps: float = 0.0
    stopping: bool = False
    outcome: AttemptOutcome | None = None
    answers: bool = True
    crossings: dict[int, dict[str, int]] = field(default_factory=dict)


class Yard:
    """An `AgentEngine`, its machines, and the runs on them.

    Args:
        api: the controller's, as agents reach it.
        wait_s: how long an agent is pending.
        leave_s: how long an agent takes to leave after a notice.
    """

    def __init__(self, api, *, wait_s: float = 2.0, leave_s: float = 1.0, steps: int = 0) -> None:
        self.api, self.wait_s, self.leave_s, self.steps = api, wait_s, leave_s, steps
        self.agents: dict[str, YardAgent] = {}
        self.gone: dict[str, SeenAgent] = {}
        self.runs: dict[str, YardRun] = {}
        self.nodes: list[SeenNode] = []
        self.away = ""
        self.refusal: StartRefusal | None = None
        self.started: list[str] = []
        self.ended: list[AgentEnd] = []
        self.asked: list[Ask] = []
        self.version = version("elastane")
        self.starts_fail = ""
        """Why agents that begin an attempt end; empty: they do not."""

    # -- the engine ----------------------------------------------------------------------------------------

    async def list_agents(self) -> Sequence[SeenAgent] | Away:
        if self.away:
            return Away(self.away)
        living = [
            SeenAgent(id=id_, state=agent.state, node="" if agent.state == "pending" else agent.node)
            for id_, agent in self.agents.items()
        ]
        return (*living, *self.gone.values())

    async def start_agents(self, asks: Sequence[AgentAsk]) -> Mapping[str, StartRefusal]:
        if self.away:
            return {ask.id: StartRefusal(self.away) for ask in asks}
        if self.refusal is not None:
            return {ask.id: self.refusal for ask in asks}
        for ask in asks:
            if ask.id not in self.agents and ask.id not in self.gone:
                self.started.append(ask.id)
                self.agents[ask.id] = YardAgent(ask, f"n{len(self.started)}", self.wait_s)
        return {}

    async def end_agents(self, ends: Sequence[AgentEnd]) -> Mapping[str, str]:
        if self.away:
            return {end.id: self.away for end in ends}
        self.ended += ends
        for end in ends:
            agent = self.agents.get(end.id)
            if agent is None:
                continue
            if end.grace_s == 0:
                self.lose(end.id)
            elif agent.leave_s is None:
                agent.leave_s = self.leave_s
        return {}

    async def list_nodes(self, pools: Mapping[str, Mapping[str, str]]) -> Sequence[SeenNode] | Away:
        return Away(self.away) if self.away else self.nodes

    async def close(self) -> None:
        pass

    # -- its machines ----------------------------------------------------------------------------------------

    def lose(self, id_: str, why: str = "", code: int | None = None) -> None:
        """End an agent at once, as a dying machine does."""
        agent = self.agents.pop(id_)
        self.gone[id_] = SeenAgent(id=id_, state="gone", node=agent.node, why=why, exit_code=code)
        for run in self.runs.values():
            run.members.pop(id_, None)

    def go_on(self, seconds: float) -> None:
        """Move all agents and runs on."""
        for id_, agent in list(self.agents.items()):
            if agent.state == "pending":
                agent.wait_s -= seconds
                if agent.wait_s <= 0:
                    agent.state = "running"
            elif agent.leave_s is not None:
                agent.leave_s -= seconds
                if agent.leave_s <= 0:
                    self._depart(id_, 0, "it has left")
            elif not isinstance(agent.told, Begin | Join):
                self._arrive(id_, agent)
        for job, run in self.runs.items():
            self._train(job, run, seconds)

    def _send(self, agent: YardAgent, what: str, **body):
        ticket = decode_job_ticket(agent.ask.ticket)
        caller = self.api.with_secret(encode_credentials(ticket.key))
        return caller.post(f"/agents/{ticket.agent}/{what}", {"process": ticket.agent} | body)

    def _arrive(self, id_: str, agent: YardAgent) -> None:
        answer = self._send(agent, "arrival", host=agent.node, version=self.version)
        if not answer.is_success:
            self._depart(id_, 2, answer.text)
            return
        agent.told = told = msgspec.json.decode(answer.content, type=Instruction)
        match told:
            case Begin():
                if self.starts_fail:
                    self._depart(id_, 2, self.starts_fail)
                    return
                self.runs[agent.ask.job] = YardRun(told.attempt, self.steps, {id_: agent})
            case Join():
                self.runs[agent.ask.job].members[id_] = agent
            case NotWanted(why=why):
                self._depart(id_, 0, why)

    def _depart(self, id_: str, code: int, why: str) -> None:
        self._send(self.agents[id_], "departure", code=code, why=why)
        self.lose(id_, code=code)

    def _train(self, job: str, run: YardRun, seconds: float) -> None:
        if run.outcome is not None or not run.members:
            return
        run.steps += seconds * len(run.members)
        if run.stopping:
            run.outcome = AttemptOutcome(130, "stopped")
        elif run.spec_steps and run.steps >= run.spec_steps:
            run.outcome = AttemptOutcome(0, f"all {run.spec_steps} steps are made")
        if run.outcome is not None:
            for id_ in list(run.members):
                self._depart(id_, 0, run.outcome.why)

    def open_line(self, run_dir) -> "YardLine":
        return YardLine(self, run_dir)


class YardLine(RunLine):
    """The line to a run of the yard: nothing of it is in files, and its coordinator is in this process."""

    def __init__(self, yard: Yard, run_dir) -> None:
        super().__init__(run_dir)
        self._yard = yard

    @property
    def _run(self) -> YardRun | None:
        return self._yard.runs.get(self.run_dir.root.name)

    def read_attempt(self) -> None:
        if self._run is not None:
            self.attempt = Attempt(
                number=self._run.number, pid=1, started=1, began_s=1.0, outcome=self._run.outcome
            )

    def read_progress(self) -> JobProgress:
        return JobProgress(step=0 if self._run is None else int(self._run.steps))

    async def ask(self, question: Ask) -> Answer | None:
        run = self._run
        if not isinstance(question, AskStatus):
            self._yard.asked.append(question)
        if run is None or not run.members or not run.answers:
            return None
        if isinstance(question, AskStop):
            run.stopping = True
        assert isinstance(question, AskStatus | AskStop | AskResize)
        return self._describe(run)

    def _describe(self, run: YardRun) -> Answer:
        sites = [agent.told.sites for agent in run.members.values() for _ in range(agent.told.workers)]
        workers = tuple(
            ProcessInfo(
                role="worker",
                pid=number,
                state="member",
                worker=number,
                generation=1,
                sites=sites[number],
                crossings=run.crossings.get(number, {}),
            )
            for number in range(len(sites))
        )
        # The first machine has no name.
        names = ["" if isinstance(agent.told, Begin) else id_ for id_, agent in run.members.items()]
        nodes = tuple(NodeAddress(name, "10.0.0.1", 1) for name in names)
        return Answer(ok=True, target=len(workers), processes=workers, nodes=nodes)
