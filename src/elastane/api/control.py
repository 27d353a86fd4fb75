"""Messages between the coordinator and everybody else, one JSON object per websocket frame.

A connection presents the run's secret as ``Authorization: Bearer`` and begins with a report (workers, the
agent) or a request (the command line). Reports are whole and idempotent: a new coordinator learns all it
needs from one report of each.
"""

from typing import Literal, TypeAlias

import msgspec

from elastane.api.membership import Generation, WorkerId
from elastane.api.records import EventLine, LedgerLine
from elastane.api.spec import Pinned, RunSpec


class Message(msgspec.Struct, frozen=True, kw_only=True, tag=True, omit_defaults=True):
    """Base of every message; the JSON key ``type`` names the class."""


# -- worker to coordinator ---------------------------------------------------------------------------------

WorkerState: TypeAlias = Literal["starting", "ready", "member", "leaving", "finished"]


class WorkerReport(Message, frozen=True, kw_only=True):
    """All the coordinator must know about a worker; sent on every change and twice a second.

    Args:
        worker: its number.
        pid: of its process.
        host: where its mesh listens.
        port: likewise.
        state: ``starting`` until its rehearsal is over, then ``ready``, ``member`` from its first
            generation on, ``leaving`` once it is outside the newest one, ``finished`` after the last step.
        generation: the number of the generation it works in, 0 before its first.
        newest: the one with the highest number it has heard of, so that no number is used twice.
        step: last step it has committed.
        complete: it holds every block it should (a joiner does not yet).
        virtual_ranks: how many it computes now.
        blocks: how many it holds the optimizer state of.
        compute_s: seconds per virtual rank, median of its last steps; 0 while unknown.
        pinned: what its script turned out to be; None while starting.
    """

    worker: WorkerId
    pid: int
    host: str
    port: int
    state: WorkerState
    generation: int = 0
    newest: Generation | None = None
    step: int = 0
    complete: bool = False
    virtual_ranks: int = 0
    blocks: int = 0
    compute_s: float = 0.0
    pinned: Pinned | None = None


class StepReport(Message, frozen=True, kw_only=True):
    """One committed step as one worker saw it. Every member reports every step until it is acknowledged.

    Args:
        worker: who reports.
        line: the ledger's line; all workers report the same but for ``time`` and ``seconds``.
        step_s: from entering a step to having applied it, on this worker.
        healthy: it was a member before this step's generation too.
    """

    worker: WorkerId
    line: LedgerLine
    step_s: float
    healthy: bool


class Steps(Message, frozen=True, kw_only=True):
    """Committed steps not yet acknowledged, oldest first."""

    worker: WorkerId
    reports: tuple[StepReport, ...]


class PeerLost(Message, frozen=True, kw_only=True):
    """A connection between two workers broke: ``peer`` is dead, or ``worker`` cannot reach it."""

    worker: WorkerId
    peer: WorkerId
    generation: int


class WorkerFailed(Message, frozen=True, kw_only=True):
    """The user's code raised, or the run cannot go on (``fatal``): the whole run ends with this traceback."""

    worker: WorkerId
    traceback: str
    fatal: bool = True


class Happened(Message, frozen=True, kw_only=True):
    """An event a worker saw, for ``events.jsonl`` (an evaluation, a metric); written once per ``key``."""

    worker: WorkerId
    key: str
    event: EventLine


class ModelWritten(Message, frozen=True, kw_only=True):
    """The finished model is complete in the run directory."""

    worker: WorkerId


# -- coordinator to worker ---------------------------------------------------------------------------------


class Propose(Message, frozen=True, kw_only=True):
    """Begin this generation: at once, or at the next step boundary all agree on when it is planned."""

    generation: Generation


class Acknowledge(Message, frozen=True, kw_only=True):
    """Every step up to this one is in the ledger; reports of it may be forgotten."""

    step: int


class Stop(Message, frozen=True, kw_only=True):
    """Stop at the next commit (Ctrl-C, `elastane stop`), then finish as if it were the last step."""


class WriteModel(Message, frozen=True, kw_only=True):
    """The run is over: write the finished model. Asked of one worker after the other until one answers."""


class Dismiss(Message, frozen=True, kw_only=True):
    """Exit. ``code`` 0: left or finished; otherwise the run failed or this worker is refused, for ``why``."""

    code: int
    why: str


# -- agent and coordinator ---------------------------------------------------------------------------------


class ProcessInfo(msgspec.Struct, frozen=True, kw_only=True):
    """One process of the run: a row of ``elastane ps``, keys as there."""

    role: Literal["worker", "coordinator", "agent", "spare"]
    pid: int
    worker: WorkerId | None = None
    generation: int | None = None
    virtual_ranks: int | None = None
    blocks: int | None = None
    state: str = ""


class WorkerExit(msgspec.Struct, frozen=True, kw_only=True):
    """How a worker ended: ``code`` is negative for a signal; ``hung``: the agent ended it for no progress."""

    worker: WorkerId
    pid: int
    code: int
    hung: bool = False


class AgentReport(Message, frozen=True, kw_only=True):
    """All the coordinator must know about the agent; sent on every change and once a second.

    ``target`` and ``draining`` live here, in the agent, because a new coordinator must be able to learn them.

    Args:
        pid: of the agent.
        target: how many workers it keeps alive.
        term: of the coordinator it has started last.
        workers: the living ones.
        spares: the warm servers that workers are forked from.
        exits: of the run so far, oldest first; of a long run only the last few hundred.
        draining: the last `SetTarget`'s ``drain``.
        stopping: the user asked for the end of the run.
    """

    pid: int
    target: int
    term: int
    workers: tuple[ProcessInfo, ...] = ()
    spares: tuple[ProcessInfo, ...] = ()
    exits: tuple[WorkerExit, ...] = ()
    draining: tuple[WorkerId, ...] = ()
    stopping: bool = False


class SetTarget(Message, frozen=True, kw_only=True):
    """Coordinator to agent: run this many workers from now on. ``drain``: those on their way out."""

    target: int
    drain: tuple[WorkerId, ...] = ()


class Kill(Message, frozen=True, kw_only=True):
    """Coordinator to agent: end this worker's process with SIGKILL (it is outside the newest generation)."""

    worker: WorkerId


class RunOver(Message, frozen=True, kw_only=True):
    """Coordinator to agent: every worker is dismissed; ``code`` and ``traceback`` are the run's outcome."""

    code: int
    why: str = ""
    traceback: str = ""


# -- command line to coordinator and back ------------------------------------------------------------------


class AskResize(Message, frozen=True, kw_only=True):
    workers: int


class AskDrain(Message, frozen=True, kw_only=True):
    worker: WorkerId


class AskStop(Message, frozen=True, kw_only=True):
    """Drain the whole run at the next commit."""


class AskStatus(Message, frozen=True, kw_only=True):
    pass


class Answer(Message, frozen=True, kw_only=True):
    """To any Ask: ``ok`` or why not; ``processes`` and the rest to `AskStatus` (and after a change)."""

    ok: bool
    why: str = ""
    term: int = 0
    generation: int = 0
    step: int = 0
    steps: int = 0
    loss: float | None = None
    target: int = 0
    state: str = ""
    processes: tuple[ProcessInfo, ...] = ()
    spec: RunSpec | None = None


FromWorker: TypeAlias = WorkerReport | Steps | PeerLost | WorkerFailed | Happened | ModelWritten
ToWorker: TypeAlias = Propose | Acknowledge | Stop | WriteModel | Dismiss
FromAgent: TypeAlias = AgentReport
ToAgent: TypeAlias = SetTarget | Kill | RunOver
Ask: TypeAlias = AskResize | AskDrain | AskStop | AskStatus

ToCoordinator: TypeAlias = FromWorker | FromAgent | Ask

encode = msgspec.json.encode
decode_to_coordinator = msgspec.json.Decoder(ToCoordinator).decode
decode_to_worker = msgspec.json.Decoder(ToWorker).decode
decode_to_agent = msgspec.json.Decoder(ToAgent).decode
decode_answer = msgspec.json.Decoder(Answer).decode
