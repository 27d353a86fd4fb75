"""The inputs of the coordinator, and the actions that it decides on."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

from elastane.run.machines.tickets.ticket_files import TicketStatus
from elastane.run.nouns.checkpoints import WrittenFile
from elastane.run.nouns.control import Answer, Ask, FromAgent, FromWorker, RunOver, ToAgent, ToWorker
from elastane.run.nouns.membership import Generation, NodeName, WorkerId
from elastane.run.nouns.records import EventLine, RunEnd
from elastane.run.nouns.spec import Pinned


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
class Ending:
    """The outcome of a run, as the coordinator decides it."""

    event: RunEnd
    over: RunOver
    cause: str
    files: Mapping[str, WrittenFile] = field(default_factory=dict)


Claimable: TypeAlias = Generation | Ending
"""What one coordinator decides and no other one may: an unplanned generation, or the end of the run."""


@dataclass(frozen=True, slots=True)
class ClaimHeld:
    """The claim holds a slot of the claim list, so its subject may be announced."""

    subject: Claimable


@dataclass(frozen=True, slots=True)
class ClaimUnanswered:
    """The claim list has not answered in time: whether the claim holds a slot is unknown."""

    subject: Claimable
    why: str


@dataclass(frozen=True, slots=True)
class ClaimsChecked:
    """The claim list was read, or did not answer in time; this happens once a second."""

    answered: bool


@dataclass(frozen=True, slots=True)
class TicketsRead:
    """The tickets of sites have changed."""

    tickets: tuple[TicketStatus, ...]


Input: TypeAlias = (
    FromWorker
    | FromAgent
    | CommandRequest
    | Disconnected
    | ClaimHeld
    | ClaimUnanswered
    | ClaimsChecked
    | TicketsRead
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
class ClaimSlot:
    """Claim the next slot of the claim list, in the background.

    `ClaimHeld` or `ClaimUnanswered` follows, unless another term is in charge: then this coordinator ends.
    The same subject may be claimed again; it gets one slot.
    """

    subject: Claimable


Action: TypeAlias = SendToWorker | SendToAgent | WriteEvent | PinScript | SendReply | ClaimSlot
