"""Messages to and from the coordinator, one JSON object per websocket frame.

A connection presents the run's secret as ``Authorization: Bearer`` and begins with a report (workers, the
agent) or a request (the command line). Reports are whole and idempotent: a new coordinator learns all it
needs from one report of each.
"""

from typing import Literal, TypeAlias

import msgspec

from elastane.api.checkpoints import WrittenFile
from elastane.api.membership import Generation, WorkerId
from elastane.api.records import EventLine, LedgerLine
from elastane.api.spec import Pinned, RunSpec
from elastane.api.untrusted_data import Decoder


class ControlMessage(msgspec.Struct, frozen=True, kw_only=True, tag=True, omit_defaults=True):
    """Base of every message; the JSON key ``type`` names the class."""


# -- worker to coordinator ---------------------------------------------------------------------------------

WorkerState: TypeAlias = Literal["starting", "ready", "member", "leaving", "finished"]


class CheckpointPart(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How far one worker is with its part of a checkpoint.

    Args:
        name: of the checkpoint.
        step: the state is the one after this step.
        writers: all who write a part; together they are the checkpoint.
        state: ``copied`` under a step that may still fail, ``writing``, ``written``, ``failing`` while
            storage refuses it and it is tried again, ``abandoned``.
        error: why.
        bytes: written.
        began_s: monotonic seconds of this machine when the copy was asked for.
        copy_s: how long the copy took, which a step may have waited for.
        write_s: how long the writing took, behind the steps.
        cpu_s: processor time of the writing.
        attempt: 0, or as in the `WriteAgain` that asked for it; a later attempt replaces an earlier one.
    """

    name: str
    step: int
    writers: tuple[WorkerId, ...]
    state: Literal["copied", "writing", "written", "failing", "abandoned"]
    error: str = ""
    bytes: int = 0
    began_s: float = 0.0
    copy_s: float = 0.0
    write_s: float = 0.0
    cpu_s: float = 0.0
    attempt: int = 0


class WorkerReport(ControlMessage, frozen=True, kw_only=True):
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
        checkpoints: its parts of the last few checkpoints, oldest first.
        ending: why its script ended the run before the last step; empty if it did not.
        stopped: the run ends before the last step because the user asked for it.
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
    checkpoints: tuple[CheckpointPart, ...] = ()
    ending: str = ""
    stopped: bool = False


class StepReport(ControlMessage, frozen=True, kw_only=True):
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


class StepReports(ControlMessage, frozen=True, kw_only=True):
    """Committed steps not yet acknowledged, oldest first."""

    worker: WorkerId
    reports: tuple[StepReport, ...]


class PeerLost(ControlMessage, frozen=True, kw_only=True):
    """A connection between two workers broke: ``peer`` is dead, or ``worker`` cannot reach it."""

    worker: WorkerId
    peer: WorkerId
    generation: int


class WorkerFailed(ControlMessage, frozen=True, kw_only=True):
    """The user's code raised, or the run cannot go on (``fatal``): the whole run ends with this traceback.

    ``lost``: not for what the code did, but because every copy of some state has died.
    """

    worker: WorkerId
    traceback: str
    fatal: bool = True
    lost: bool = False


class WorkerEvent(ControlMessage, frozen=True, kw_only=True):
    """An event a worker saw, for ``events.jsonl`` (an evaluation, a metric); written once per ``key``."""

    worker: WorkerId
    key: str
    event: EventLine


class ModelWritten(ControlMessage, frozen=True, kw_only=True):
    """The finished model is complete in the run directory; ``files`` are all of its set.

    With ``error``, this worker could not write it, and another one is asked.
    """

    worker: WorkerId
    files: dict[str, WrittenFile] = {}
    error: str = ""


class CheckpointKept(ControlMessage, frozen=True, kw_only=True):
    """A checkpoint exists from now on; with ``error``, it could not be published and is asked for again."""

    worker: WorkerId
    name: str
    step: int
    bytes: int = 0
    metrics: dict[str, float] = {}
    error: str = ""


# -- coordinator to worker ---------------------------------------------------------------------------------


class Propose(ControlMessage, frozen=True, kw_only=True):
    """Begin this generation: at once, or at the next step boundary all agree on when it is planned."""

    generation: Generation


class Acknowledge(ControlMessage, frozen=True, kw_only=True):
    """Every step up to this one is in the ledger; reports of it may be forgotten."""

    step: int


class StopTraining(ControlMessage, frozen=True, kw_only=True):
    """Stop at the next commit (Ctrl-C, `elastane stop`), then finish as if it were the last step."""


class TakeCheckpoint(ControlMessage, frozen=True, kw_only=True):
    """Keep the state of one of the next steps, unless one after ``after`` has been kept already."""

    after: int


class PublishCheckpoint(ControlMessage, frozen=True, kw_only=True):
    """All parts are written: make the checkpoint exist."""

    name: str
    step: int
    writers: tuple[WorkerId, ...]


class WriteAgain(ControlMessage, frozen=True, kw_only=True):
    """The run has ended, and a part of its last checkpoint could not be written: write all of it again.

    ``writers`` do so; ``attempt`` counts from 1.
    """

    writers: tuple[WorkerId, ...]
    attempt: int


class WriteModel(ControlMessage, frozen=True, kw_only=True):
    """The run is over: write the finished model. Asked of one worker after the other until one answers."""


class Dismiss(ControlMessage, frozen=True, kw_only=True):
    """Exit. ``code`` 0: left or finished; otherwise the run failed or this worker is refused, for ``why``."""

    code: int
    why: str


# -- agent and coordinator ---------------------------------------------------------------------------------


class ProcessInfo(msgspec.Struct, frozen=True, kw_only=True):
    """One process of the run: a row of ``elastane ps``, keys as there."""

    role: Literal["worker", "coordinator", "agent", "fork-server"]
    pid: int
    worker: WorkerId | None = None
    generation: int | None = None
    virtual_ranks: int | None = None
    blocks: int | None = None
    state: str = ""


LARGEST_SCRIPT_CODE = 127
"""Exit codes of scripts, and of what they run, go so far; a worker's beyond it is a death like any other."""

CANNOT_GO_ON = 170
"""Exit code of a worker that cannot go on where another one can: one of our own threads has died, or its
script cannot follow those of the others."""


class WorkerExit(msgspec.Struct, frozen=True, kw_only=True):
    """How a worker ended.

    Args:
        code: negative for a signal.
        hung: the agent ended it for no progress.
        why: the agent ended it, in words; empty if it did not.
    """

    worker: WorkerId
    pid: int
    code: int
    hung: bool = False
    why: str = ""


class AgentReport(ControlMessage, frozen=True, kw_only=True):
    """All the coordinator must know about the agent; sent on every change and once a second.

    ``target`` and ``draining`` live here, in the agent, because a new coordinator must be able to learn them.

    Args:
        pid: of the agent.
        target: how many workers it keeps alive.
        term: of the coordinator it has started last.
        workers: the living ones.
        fork_servers: the fork servers that workers are forked from.
        standby: the process that will be the next coordinator.
        exits: of the run so far, oldest first; of a long run only the last few hundred.
        draining: the last `SetTarget`'s ``drain``.
        stopping: the user asked for the end of the run.
        awaiting_data: workers that have waited for their samples for seconds, within a step.
        by_hand: as in the last `SetTarget`.
    """

    pid: int
    target: int
    term: int
    workers: tuple[ProcessInfo, ...] = ()
    fork_servers: tuple[ProcessInfo, ...] = ()
    standby: tuple[ProcessInfo, ...] = ()
    exits: tuple[WorkerExit, ...] = ()
    draining: tuple[WorkerId, ...] = ()
    stopping: bool = False
    awaiting_data: tuple[WorkerId, ...] = ()
    by_hand: bool = False


class SetTarget(ControlMessage, frozen=True, kw_only=True):
    """Coordinator to agent: run this many workers from now on.

    ``drain``: those on their way out. ``by_hand``: a human has said how many.
    """

    target: int
    drain: tuple[WorkerId, ...] = ()
    by_hand: bool = False


class KillWorker(ControlMessage, frozen=True, kw_only=True):
    """Coordinator to agent: end this worker's process with SIGKILL, for ``why``."""

    worker: WorkerId
    why: str = "its peers had lost it while it lived, so it was ended"


class RunOver(ControlMessage, frozen=True, kw_only=True):
    """Coordinator to agent: every worker is dismissed; ``code`` and ``traceback`` are the run's outcome.

    ``lost``: every copy of some state died, so the newest checkpoint is what is left.
    """

    code: int
    why: str = ""
    traceback: str = ""
    lost: bool = False


# -- command line to coordinator and back ------------------------------------------------------------------


class AskResize(ControlMessage, frozen=True, kw_only=True):
    """Another number of workers.

    Args:
        workers: from now on.
        limits: fewest and most, as they are now, from a controller that decides about the number of workers;
            None: a human does.
        unless_by_hand: refused while the number that a human has set holds.
    """

    workers: int
    limits: tuple[int, int] | None = None
    unless_by_hand: bool = False


class AskDrain(ControlMessage, frozen=True, kw_only=True):
    worker: WorkerId


class AskStop(ControlMessage, frozen=True, kw_only=True):
    """Drain the whole run at the next commit.

    Args:
        who: asks.
        why: a sentence; empty: unknown.
    """

    who: Literal["user", "controller"] = "user"
    why: str = ""


class AskEvict(ControlMessage, frozen=True, kw_only=True):
    """Kill the workers that are still leaving."""


class AskCheckpoint(ControlMessage, frozen=True, kw_only=True):
    """Keep the state of one of the next steps."""


class AskStatus(ControlMessage, frozen=True, kw_only=True):
    pass


class Answer(ControlMessage, frozen=True, kw_only=True):
    """To any Ask: ``ok`` or why not; ``processes`` and the rest to `AskStatus` (and after a change).

    ``by_hand``: the target was last set by a human, not by a controller.
    """

    ok: bool
    why: str = ""
    term: int = 0
    generation: int = 0
    step: int = 0
    steps: int = 0
    loss: float | None = None
    target: int = 0
    by_hand: bool = False
    state: str = ""
    processes: tuple[ProcessInfo, ...] = ()
    spec: RunSpec | None = None


FromWorker: TypeAlias = (
    WorkerReport | StepReports | PeerLost | WorkerFailed | WorkerEvent | ModelWritten | CheckpointKept
)
ToWorker: TypeAlias = (
    Propose
    | Acknowledge
    | StopTraining
    | TakeCheckpoint
    | PublishCheckpoint
    | WriteAgain
    | WriteModel
    | Dismiss
)
FromAgent: TypeAlias = AgentReport
ToAgent: TypeAlias = SetTarget | KillWorker | RunOver
Ask: TypeAlias = AskResize | AskDrain | AskEvict | AskStop | AskCheckpoint | AskStatus

ToCoordinator: TypeAlias = FromWorker | FromAgent | Ask

encode = msgspec.json.encode

LARGEST_MESSAGE_BYTES = 64 << 20
"""Of any of these messages; both ends of a connection use it as the limit of a frame."""
LARGEST_ANSWER_BYTES = 16 << 20

decode_to_coordinator: Decoder[ToCoordinator] = Decoder(ToCoordinator, at_most_bytes=LARGEST_MESSAGE_BYTES)
decode_to_worker: Decoder[ToWorker] = Decoder(ToWorker, at_most_bytes=LARGEST_MESSAGE_BYTES)
decode_to_agent: Decoder[ToAgent] = Decoder(ToAgent, at_most_bytes=LARGEST_MESSAGE_BYTES)
decode_answer: Decoder[Answer] = Decoder(Answer, at_most_bytes=LARGEST_ANSWER_BYTES)
