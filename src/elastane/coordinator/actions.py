"""The inputs of the coordinator, and the actions that it decides on."""

from dataclasses import dataclass
from typing import TypeAlias

from elastane.api.control import Answer, Ask, FromAgent, FromWorker, ToAgent, ToWorker
from elastane.api.membership import NodeName, WorkerId
from elastane.api.records import EventLine
from elastane.api.spec import Pinned


@dataclass(frozen=True, slots=True)
class CommandRequest:
    """A request from the command line; its `SendReply` carries the same token."""

    token: int
    ask: Ask


@dataclass(frozen=True, slots=True)
class Disconnected:
    """The end of a worker's connection. It may connect again; only the agent knows whether it lives."""

    worker: WorkerId


Input: TypeAlias = FromWorker | FromAgent | CommandRequest | Disconnected


@dataclass(frozen=True, slots=True)
class SendToWorker:
    """Send a message to a worker if it is connected; a lost message is sent again after its next report."""

    worker: WorkerId
    message: ToWorker


@dataclass(frozen=True, slots=True)
class SendToAgent:
    """Send a message to the agent of a node, if it is connected; None: of every node."""

    message: ToAgent
    node: NodeName | None = None


@dataclass(frozen=True, slots=True)
class WriteEvent:
    """Append an event to ``events.jsonl``."""

    event: EventLine


@dataclass(frozen=True, slots=True)
class PinScript:
    """Write the properties of the script into ``run.json``."""

    pinned: Pinned


@dataclass(frozen=True, slots=True)
class SendReply:
    token: int
    answer: Answer


Action: TypeAlias = SendToWorker | SendToAgent | WriteEvent | PinScript | SendReply
