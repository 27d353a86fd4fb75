"""The inputs of the coordinator, and the actions that it decides on."""

from dataclasses import dataclass
from typing import TypeAlias

from elastane.api.control import Answer, Ask, FromAgent, FromWorker, ToAgent, ToWorker
from elastane.api.membership import Generation, NodeName, WorkerId
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


@dataclass(frozen=True, slots=True)
class GenerationClaimed:
    """The claim of a generation holds a slot of the claim list, so the generation may be proposed."""

    number: int


@dataclass(frozen=True, slots=True)
class ClaimUnanswered:
    """The claim list has not answered in time: whether the claim holds a slot is unknown."""

    number: int
    why: str


Input: TypeAlias = (
    FromWorker | FromAgent | CommandRequest | Disconnected | GenerationClaimed | ClaimUnanswered
)


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


@dataclass(frozen=True, slots=True)
class ClaimGeneration:
    """Claim the next slot of the claim list for an unplanned generation, in the background.

    `GenerationClaimed` or `ClaimUnanswered` follows, unless another term is in charge: then this coordinator
    ends. The same generation may be claimed again; it gets one slot.
    """

    generation: Generation


Action: TypeAlias = SendToWorker | SendToAgent | WriteEvent | PinScript | SendReply | ClaimGeneration
