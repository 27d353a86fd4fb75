"""Agents: the processes that take part in the runs of jobs, and the interface of the engines that start them.

An engine starts, ends and observes agents, nothing else: it decides *where* an agent runs. Sizes, drains and
progress are talk with the run. An engine keeps no state that it could not observe again.
"""

import re
import sys
from collections.abc import Mapping, Sequence
from typing import Annotated, Literal, Protocol, TypeAlias

import msgspec

from elastane.common.bodies import AnswerBody
from elastane.common.errors import BadInput

AGENT_ID = r"[a-z][a-z0-9]{0,15}-[0-9]{1,15}"
"""The cluster that asked for the agent, and its number there, which is never used again."""

ELASTANE_COMMAND = (sys.executable, "-P", "-m", "elastane")
"""Runs Elastane on machines with the same paths as this one."""

MOST_DEVICES = 4096
_AGENT_ID = re.compile(AGENT_ID)
_TICKET = re.compile(r"[!-~]{1,16384}", re.ASCII)

AgentId: TypeAlias = Annotated[str, msgspec.Meta(pattern=rf"^{AGENT_ID}\Z")]
AgentState: TypeAlias = Literal["pending", "running", "leaving", "gone"]
"""Devices are held from ``running`` to ``gone``."""


def belongs_to(agent: str, cluster: str) -> bool:
    """Return whether a text is the id of an agent of a cluster."""
    return _AGENT_ID.fullmatch(agent) is not None and agent.rpartition("-")[0] == cluster


def is_ticket_word(text: str) -> bool:
    """Return whether a text is one word of printable ASCII characters, as every ticket."""
    return _TICKET.fullmatch(text) is not None


class AgentGang(msgspec.Struct, frozen=True):
    """Agents of which an engine with a queue should start all or none, because their job begins with them.

    Args:
        number: of the gang in its cluster, which is never used again.
        size: how many agents it has. One that has failed may be replaced within it.
    """

    number: int
    size: int


class AgentAsk(msgspec.Struct, frozen=True, kw_only=True):
    """Start an agent on one machine, unless an agent with this id has been asked for before.

    Args:
        job: to be shown in the engine's own list.
        pool: options of the pool, as the kind of the engine names them.
        options: of the job, as the kind of the engine names them.
        devices: how many the agent holds.
        cpus: how many processors it holds; 0: those that the engine gives with the devices.
        memory_bytes: how much memory it holds; 0: as much as the engine gives.
        grace_s: how long before the end of its time the agent wants a notice.
        until_s: when it must have ended, in seconds since 1970; None: whenever the engine says.
        image: of the container in which it runs, see `elastane.cluster.nouns.images`; empty: that of the
            pool, or none.
        home: directory that it shares with the controller, so that a container has to show it; empty: none.
        log: file for what the agent writes; empty: wherever the engine keeps it, or nowhere.
        gang: that the agent belongs to; None: it is beyond the fewest that its job needs.
        ticket: secret; the agent reads it as one line of its standard input.
    """

    id: AgentId
    job: str
    pool: Mapping[str, str]
    options: Mapping[str, str] = {}
    devices: int
    cpus: int = 0
    memory_bytes: int = 0
    grace_s: float
    until_s: float | None = None
    image: str = ""
    home: str = ""
    log: str = ""
    gang: AgentGang | None = None
    ticket: str


def check_ask(ask: AgentAsk) -> None:
    """Check what no engine can start, with `BadInput`: the number of devices, and the form of the ticket."""
    if not 1 <= ask.devices <= MOST_DEVICES:
        raise BadInput(f"agent {ask.id} asks for {ask.devices} devices", do=f"ask for 1 to {MOST_DEVICES}")
    if not is_ticket_word(ask.ticket):
        raise BadInput(
            f"the ticket of agent {ask.id} is malformed",
            means="the agent could not read it as one line",
            do="make it one word of printable ASCII characters",
        )


class AgentEnd(msgspec.Struct, frozen=True):
    """End an agent: give it a notice, and kill all of it that is still there after ``grace_s``; 0: now."""

    id: AgentId
    grace_s: float


class SeenAgent(msgspec.Struct, frozen=True, kw_only=True):
    """An agent, as its engine sees it.

    Args:
        node: the machine that it runs on; empty: none yet.
        why: a sentence about a pending agent, or about the end of a gone one; empty: nothing is known.
        exit_code: of a gone agent; None: unknown, or it was killed.
        ended_s: when it ended, in seconds since 1970; None: it has not, or the time is unknown.
        until_s: when the engine will end it, in seconds since 1970; None: unknown, or never.
        is_replaceable: of a gone agent of a gang: its queue takes another one in its place.
    """

    id: AgentId
    state: AgentState
    node: str = ""
    why: str = ""
    exit_code: int | None = None
    ended_s: float | None = None
    until_s: float | None = None
    is_replaceable: bool = False


class SeenNode(msgspec.Struct, frozen=True, kw_only=True):
    """A machine, as its engine sees it.

    Args:
        pool: name of the pool that its devices belong to.
        devices: how many the cluster may use: those of the machine, less those that others hold.
    """

    name: str
    pool: str
    devices: int


class StartRefusal(msgspec.Struct, frozen=True):
    """Why an engine did not start an agent.

    Args:
        for_ever: it would refuse the same agent again.
    """

    why: str
    for_ever: bool = False


class Away(msgspec.Struct, frozen=True):
    """The engine did not answer, or not completely. Nothing may be concluded from that."""

    why: str


class EngineFinding(AnswerBody, frozen=True, omit_defaults=True):
    """One thing that was looked at, to find out whether an engine can work.

    Args:
        ok: whether it can with this thing.
        what: a sentence.
        do: what an operator can do; empty: nothing has to be done.
    """

    ok: bool
    what: str
    do: str = ""


class AgentEngine(Protocol):
    """An engine that starts, ends and observes agents. It touches no agent of another cluster."""

    async def list_agents(self) -> Sequence[SeenAgent] | Away:
        """Return every agent that this engine may have started and still knows.

        An agent that is not in the list is gone.
        """

    async def start_agents(self, asks: Sequence[AgentAsk]) -> Mapping[AgentId, StartRefusal]:
        """Start agents. It may be repeated: an agent that exists is not started again.

        Returns:
            Why some were not started. No answer in time is a refusal that is not for ever.
        """

    async def end_agents(self, ends: Sequence[AgentEnd]) -> Mapping[AgentId, str]:
        """End agents. It may be repeated, also for agents that are gone.

        Returns:
            Why some could not be ended, by id.
        """

    async def list_nodes(self, pools: Mapping[str, Mapping[str, str]]) -> Sequence[SeenNode] | Away:
        """Return the machines of pools.

        Args:
            pools: the options of each pool, by its name.
        """

    async def close(self) -> None:
        """Release the engine's own resources; agents go on."""
