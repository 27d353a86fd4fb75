"""An engine of agents on this machine, and a controller in this process that starts jobs on them."""

import asyncio
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import uvicorn
from elastane.cluster.client.cluster import Cluster
from elastane.cluster.controller.agents.all_engines import AllEngines
from elastane.cluster.controller.agents.fleet import Fleet
from elastane.cluster.controller.agents.site import Site
from elastane.cluster.controller.loop import Loop
from elastane.cluster.controller.planning import Scheduler
from elastane.cluster.controller.rest.app import build_application
from elastane.cluster.controller.rest.context import Controller
from elastane.cluster.controller.store.database import Store
from elastane.cluster.controller.store.tokens import make_first_token
from elastane.cluster.engines.local.engine import LocalEngine
from elastane.cluster.nouns.agents import AgentAsk, AgentEnd, Away, SeenAgent, SeenNode, StartRefusal
from elastane.cluster.nouns.config import Config, DeclaredEngine, SchedulingRules
from elastane.cluster.nouns.controller import ControllerReady
from elastane.cluster.nouns.pools import Pool
from elastane.cluster.scheduler.explanations import explain_decision
from elastane.cluster.scheduler.plan import plan
from elastane.common.connections.http_listener import open_http_listener

from processes import wait_until

JOIN = (sys.executable, "-P", "-m", "elastane", "join", "-")
APART = ("unshare", "--map-root-user", "--pid", "--fork", "--kill-child", "--mount-proc")
DEVICES = 4


class ProcessEngine:
    """An `elastane.cluster.nouns.agents.AgentEngine` that starts its agents as processes of this machine.

    Args:
        where: for the output of the agents.
        apart: agents share neither a directory nor memory, as on machines of their own: each has another
            home, and its own numbers of processes.

    Attributes:
        began_s: when each agent was started, in seconds since 1970.
    """

    def __init__(self, where: Path, *, apart: bool = False) -> None:
        self._where, self._apart = where, apart
        self._agents: dict[str, subprocess.Popen[bytes]] = {}
        self._killed: set[str] = set()
        self.began_s: dict[str, float] = {}
        where.mkdir(parents=True)

    async def list_agents(self) -> Sequence[SeenAgent] | Away:
        """Return all agents."""
        return [
            SeenAgent(id=id_, state="running", node=f"node-of-{id_}")
            if process.poll() is None
            else SeenAgent(id=id_, state="gone", exit_code=self._find_exit_code(id_))
            for id_, process in self._agents.items()
        ]

    def _find_exit_code(self, agent: str) -> int | None:
        """Return the exit code of an agent that has ended; None: it was killed."""
        code = self._agents[agent].returncode
        # `unshare` ends with a code of its own if its child was killed.
        return None if code < 0 or agent in self._killed else code

    async def start_agents(self, asks: Sequence[AgentAsk]) -> Mapping[str, StartRefusal]:
        """Start agents."""
        for ask in asks:
            if ask.id not in self._agents:
                home = {"ELASTANE_HOME": str(self._where / ask.id)} if self._apart else {}
                with (self._where / f"{ask.id}.log").open("wb") as log:
                    self.began_s[ask.id] = time.time()
                    process = self._agents[ask.id] = subprocess.Popen(  # noqa: ASYNC220 - it begins at once
                        (*APART, *JOIN) if self._apart else JOIN,
                        stdin=subprocess.PIPE,
                        stdout=log,
                        stderr=log,
                        env={**os.environ, **home},
                        start_new_session=True,
                    )
                assert process.stdin is not None
                process.stdin.write(f"{ask.ticket}\n".encode())
                process.stdin.close()
        return {}

    async def end_agents(self, ends: Sequence[AgentEnd]) -> Mapping[str, str]:
        """Give agents a notice, or kill them."""
        for end in ends:
            if end.id in self._agents:
                self._signal(end.id, signal.SIGTERM if end.grace_s else signal.SIGKILL)
        return {}

    async def list_nodes(self, pools: Mapping[str, Mapping[str, str]]) -> Sequence[SeenNode] | Away:
        """Return no machine: the pool says how many devices there are."""
        return ()

    async def close(self) -> None:
        """Do nothing: agents go on."""

    def kill(self, agent: str) -> None:
        """Kill an agent, as the end of its machine would."""
        self._signal(agent, signal.SIGKILL)

    def _signal(self, agent: str, number: signal.Signals) -> None:
        process = self._agents[agent]
        if process.poll() is not None:
            return
        pid = process.pid
        if number == signal.SIGKILL:
            self._killed.add(agent)
        with suppress(ProcessLookupError, FileNotFoundError):
            if self._apart:
                (pid,) = map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split())
            os.kill(pid, number)

    def has_ended(self, agent: str) -> bool:
        """Return whether the process of an agent has ended."""
        return self._agents[agent].poll() is not None

    def have_all_ended(self) -> bool:
        """Return whether no agent is left."""
        return all(map(self.has_ended, self._agents))

    def end(self) -> None:
        """Kill all agents that are left."""
        for process in self._agents.values():
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()

    def read_log(self, agent: str) -> str:
        """Return the output of an agent."""
        return (self._where / f"{agent}.log").read_text()


@contextmanager
def open_cluster(home: Path, engine: ProcessEngine) -> Iterator[Cluster]:
    """Run a controller with one pool, of this engine, in threads of this process; yield a client."""
    with run_controller(home, engine) as ready, Cluster(ready.url, ready.token) as cluster:
        config = Config(
            pools=(Pool(name="far", device="cpu", devices=DEVICES, engine="far"),),
            engines=(DeclaredEngine(name="far", kind="slurm"),),
            rules=SchedulingRules(cooldown_s=0.1, min_run_time_s=0.1),
        )
        cluster.documents.apply(config)
        yield cluster


@contextmanager
def run_controller(home: Path, engine: ProcessEngine) -> Iterator[ControllerReady]:
    """Run a controller in threads of this process; all engines that are declared there are this one."""
    home.mkdir(parents=True, exist_ok=True)
    store = Store(f"sqlite:///{home}/store.db")
    with store.begin_write() as tx:
        token = make_first_token(tx, "benchmark", time.time())
    assert token is not None
    listener = open_http_listener("127.0.0.1", 0, certificate="", key="")
    url = f"http://127.0.0.1:{listener.getsockname()[1]}"
    fleet = Fleet(store, Site(home, url), lambda _document, _cluster: engine)
    loop = Loop(store, AllEngines(LocalEngine(home), fleet), Scheduler(plan=plan, explain=explain_decision))
    api = build_application(Controller(store, wake=loop.wake, plan=plan, explain=explain_decision, home=home))
    server = uvicorn.Server(uvicorn.Config(api, log_level="warning"))
    threads = [
        threading.Thread(target=asyncio.run, args=(loop.run(),)),
        threading.Thread(target=server.run, kwargs={"sockets": [listener]}),
    ]
    for thread in threads:
        thread.start()
    try:
        wait_until(lambda: server.started, "the controller listens")
        yield ControllerReady(url=url, pid=os.getpid(), store=str(home / "store.db"), token=token)
    finally:
        api.state.closing.set()
        server.should_exit = True
        loop.close()
        for thread in threads:
            thread.join()
        listener.close()
        store.close()
        engine.end()
