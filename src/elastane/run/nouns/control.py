"""Messages to and from the coordinator, one JSON object per WebSocket frame.

A connection presents the run's secret as ``Authorization: Bearer`` and begins with a report (from a worker or
the agent) or a request (from the command line). A report is complete and idempotent: one report from each
process tells a new coordinator all that it needs.
"""

from typing import Literal, TypeAlias

import msgspec

from elastane.common.bounds import Blocks, Count, Duration, Percent, Position
from elastane.common.untrusted_data import Decoder
from elastane.run.nouns.checkpoints import UNORDERED, WriteAttempt, WrittenFile
from elastane.run.nouns.membership import (
    Generation,
    GenerationId,
    Host,
    NodeAddress,
    NodeName,
    Port,
    SiteName,
    WorkerId,
)
from elastane.run.nouns.records import EventLine, LedgerLine
from elastane.run.nouns.spec import Pinned, RunSpec


class ControlMessage(msgspec.Struct, frozen=True, kw_only=True, tag=True, omit_defaults=True):
    """Base of every message; the JSON key ``type`` names the class."""


# -- worker to coordinator ---------------------------------------------------------------------------------

WorkerState: TypeAlias = Literal["starting", "ready", "member", "leaving", "finished"]


BlockSpan: TypeAlias = tuple[Blocks, Blocks]
"""Consecutive blocks of the state: the first one, and the one after the last."""


class CheckpointPart(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The progress of one worker with its part of a checkpoint.

    Args:
        step: the last step that the state includes.
        writers: all workers that write a part; their parts together are the checkpoint.
        state: ``copied`` during a step that may still fail, ``writing``, ``written``, ``failing`` while
            storage refuses it and the worker retries, ``abandoned``.
        error: the reason for the last two states.
        bytes: number of bytes written.
        began_s: when the copy was requested, in monotonic seconds of this machine.
        copy_s: duration of the copy; a step may have waited for it.
        write_s: duration of the writing, in the background of the steps.
        cpu_s: processor time of the writing, in seconds.
        attempt: the one in the `WriteAgain` that requested it; a later attempt replaces an earlier one.
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
    attempt: WriteAttempt = UNORDERED


class TrafficBytes(msgspec.Struct, frozen=True):
    """The bytes that a worker, or all workers of a machine, exchange with other machines in a usual step."""

    sent: Position
    received: Position


class WorkerReport(ControlMessage, frozen=True, kw_only=True):
    """All that the coordinator must know about a worker; sent on every change and twice a second.

    Args:
        host: address on which its mesh listens.
        port: port on which its mesh listens.
        node: the name of its node; empty: the first one.
        state: ``starting`` until its rehearsal is over, then ``ready``, ``member`` from its first
            generation on, ``leaving`` once it is outside the newest one, ``finished`` after the last step.
        generation: the number of the generation it works in, 0 before its first.
        newest: the generation with the highest number that it knows, so that no number is used twice.
        newest_id: stands on the wire for `newest`, if this generation has crossed the same connection before.
            Otherwise all reports of a run together would grow with the square of its workers.
        step: the last step that it has committed.
        complete: it holds all its blocks (a joiner does not yet).
        virtual_ranks: how many it computes now.
        blocks: number of blocks of which it holds the optimizer state.
        last_blocks: once ``finished``, the blocks of the last state that it could write, in order.
        compute_s: seconds per virtual rank, the median of its last steps; 0 while unknown.
        pinned: the pinned facts of its script; None while starting.
        checkpoints: its parts of the last few checkpoints, oldest first.
        ending: why its script ended the run before the last step; empty: it did not.
        stopped: the run ends before the last step because the user requested it.
        traffic: what it exchanges with other machines in a usual step of its generation; None: not measured.
        notice: the signal that announces its end, which it alone has got, such as SIGTERM; empty: none.
        crossings: the bytes that it has sent to workers at each other site since it began.
    """

    worker: WorkerId
    pid: int
    host: str
    port: int
    state: WorkerState
    generation: int = 0
    newest: Generation | None = None
    newest_id: GenerationId | None = None
    step: int = 0
    complete: bool = False
    virtual_ranks: int = 0
    blocks: int = 0
    last_blocks: tuple[BlockSpan, ...] = ()
    compute_s: float = 0.0
    pinned: Pinned | None = None
    checkpoints: tuple[CheckpointPart, ...] = ()
    ending: str = ""
    stopped: bool = False
    node: NodeName = ""
    traffic: TrafficBytes | None = None
    notice: str = ""
    sites: tuple[SiteName, ...] = ()
    crossings: dict[SiteName, Position] = {}


class StepReport(ControlMessage, frozen=True, kw_only=True):
    """One committed step, as one worker saw it. Every member reports each step until it is acknowledged.

    Args:
        line: the ledger's line; all workers report the same, except for ``time`` and ``seconds``.
        shares_again: on the wire ``line`` lacks its ``workers``, which are those of the line before it on the
            same connection.
        step_s: seconds from entering the step to having applied it, on this worker.
        healthy: the worker was also a member of the generation before this step's.
    """

    worker: WorkerId
    line: LedgerLine
    step_s: float
    healthy: bool
    shares_again: bool = False


class StepReports(ControlMessage, frozen=True, kw_only=True):
    """Committed steps that are not acknowledged yet, oldest first."""

    worker: WorkerId
    reports: tuple[StepReport, ...]


class PeerLost(ControlMessage, frozen=True, kw_only=True):
    """The connection between two workers broke for good: ``peer`` is dead, or ``worker`` cannot reach it."""

    worker: WorkerId
    peer: WorkerId


class WorkerFailed(ControlMessage, frozen=True, kw_only=True):
    """The user's code raised, or the run cannot continue; if ``fatal``, the run ends with this traceback.

    ``lost`` is True if the reason is not the code but the loss of every copy of some state.
    """

    worker: WorkerId
    traceback: str
    fatal: bool = True
    lost: bool = False


class WorkerEvent(ControlMessage, frozen=True, kw_only=True):
    """An event of a worker for ``events.jsonl`` (an evaluation, a message); written once per ``key``."""

    worker: WorkerId
    key: str
    event: EventLine


class ModelWritten(ControlMessage, frozen=True, kw_only=True):
    """The finished model is complete in the run directory; ``files`` are all of its files.

    With ``error``, this worker could not write it, and the coordinator asks another one.
    """

    worker: WorkerId
    files: dict[str, WrittenFile] = {}
    error: str = ""


class CheckpointKept(ControlMessage, frozen=True, kw_only=True):
    """A checkpoint was published; with ``error``, it was not, and the coordinator requests it again."""

    worker: WorkerId
    name: str
    step: int
    bytes: int = 0
    metrics: dict[str, float] = {}
    error: str = ""


# -- coordinator to worker ---------------------------------------------------------------------------------


class Propose(ControlMessage, frozen=True, kw_only=True):
    """Begin this generation: at once or, if it is planned, at the next step boundary that all agree on."""

    generation: Generation


class Acknowledge(ControlMessage, frozen=True, kw_only=True):
    """Forget the reports of all steps up to this one, because they are in the ledger."""

    step: int


class StopTraining(ControlMessage, frozen=True, kw_only=True):
    """Stop at the next commit (Ctrl-C, `elastane stop`), then finish as after the last step."""


class TakeCheckpoint(ControlMessage, frozen=True, kw_only=True):
    """Save the state after one of the next steps, unless a step later than ``after`` has been saved."""

    after: int


class PublishCheckpoint(ControlMessage, frozen=True, kw_only=True):
    """Publish the checkpoint, because all its parts are written."""

    name: str
    step: int
    writers: tuple[WorkerId, ...]


class WriteAgain(ControlMessage, frozen=True, kw_only=True):
    """Write the last checkpoint of the ended run again, because a part of it could not be written.

    The coordinator divides the blocks, from one set of reports, so that the parts of one attempt are always
    the whole state, in whichever generations their writers work.

    Args:
        blocks: the blocks that the receiver writes, in order.
        attempt: its number counts from 1 in each term.
    """

    writers: tuple[WorkerId, ...]
    blocks: tuple[BlockSpan, ...]
    attempt: WriteAttempt


class WriteModel(ControlMessage, frozen=True, kw_only=True):
    """Write the finished model. The coordinator asks one worker after the other until one succeeds."""


class Dismiss(ControlMessage, frozen=True, kw_only=True):
    """Exit. ``code`` 0: the worker left or finished; else the run failed or refuses it, for ``why``."""

    code: int
    why: str


# -- agent and coordinator ---------------------------------------------------------------------------------


Numbers: TypeAlias = tuple[Position, Position]
"""A range of workers' numbers: the first, and the end, which is not in it."""

Activity: TypeAlias = Literal["start", "load", "compute", "wait", "script", "end"]
"""The work of the training thread of a worker: it prepares, loads samples, computes, waits for the sums and
votes of the workers, runs the script between two steps, or has ended."""


class ProcessInfo(msgspec.Struct, frozen=True, kw_only=True):
    """One process of the run: a row of ``elastane ps``, with the same keys.

    Args:
        node: the name of its node; empty: the first one.
        sent_bytes: to other machines in a usual step of a worker; None: unknown.
        received_bytes: from other machines, likewise.
        activity: the shares in percent of what a worker did in the last two seconds; empty: unknown.
        silent_s: seconds since the last progress of a worker; 0: it has made some in the last two.
        compute_s: seconds per virtual rank, the median of its last steps; 0: unknown.
        saving: it writes its part of a checkpoint.
        further: the process ids of a worker of several processes, without that of process 0.
        sites: of which a worker may read the data.
        crossings: the bytes that a worker has sent to workers at each other site since it began.
    """

    role: Literal["worker", "coordinator", "agent", "fork-server"]
    pid: int
    worker: WorkerId | None = None
    generation: int | None = None
    virtual_ranks: int | None = None
    blocks: int | None = None
    state: str = ""
    node: str = ""
    sent_bytes: Position | None = None
    received_bytes: Position | None = None
    activity: dict[Activity, Percent] = {}
    silent_s: Duration = 0.0
    compute_s: Duration = 0.0
    saving: bool = False
    further: tuple[int, ...] = ()
    sites: tuple[SiteName, ...] = ()
    crossings: dict[SiteName, Position] = {}


LARGEST_SCRIPT_CODE = 127
"""The largest exit code of a script; a worker that ends with a larger one counts as dead."""

CANNOT_GO_ON = 170
"""Exit code of a worker that cannot continue although another one can: one of Elastane's threads has died, or
its script cannot follow those of the others."""


FOUND_WRONG = 169
"""Exit code of a worker that a spot check has found wrong."""


class WorkerExit(msgspec.Struct, frozen=True, kw_only=True):
    """The end of a worker's process.

    Args:
        code: exit code; negative for a signal.
        hung: the agent killed it because it made no progress.
        why: why the agent killed it, in words; empty: it did not.
    """

    worker: WorkerId
    pid: int
    code: int
    hung: bool = False
    why: str = ""


class AgentReport(ControlMessage, frozen=True, kw_only=True):
    """All that the coordinator must know about one agent; sent on every change and once a second.

    The agent keeps what the last `SetTarget` said, because a new coordinator must be able to learn it.

    Args:
        target: number of workers that it keeps running.
        term: term of the coordinator that it started last; 0: it starts none.
        node: the name of its node; empty: the one on which the run began.
        joins: the attempt began on another node.
        host: numeric address at which it answers other agents; empty: it does not.
        port: TCP port of that address.
        slots: the most workers that it runs; None: without limit.
        leaving: the user has asked the node to leave the run.
        numbers: the ranges of workers' numbers that it may still use, each as first number and end.
        total: as in the last `SetTarget`; 0: it has had none.
        nodes: as in the last `SetTarget`.
        workers: the living ones.
        fork_servers: the fork servers that workers are forked from.
        standby: the process that will be the next coordinator.
        exits: ends of workers so far, oldest first; in a long run only the last few hundred.
        draining: the last `SetTarget`'s ``drain``.
        stopping: the user requested the end of the run.
        awaiting_data: workers that have waited for their samples for seconds, in the middle of a step.
        importing: the script of a worker has not joined, and imports modules.
        by_hand: as in the last `SetTarget`.
        claimed: as in the last `SetTarget`.
        closed: as in the last `SetTarget`.
        sites: of which its machine may read the data.
        ticket: the one of a site with which it has joined, as its id and key; empty: it has none.
    """

    pid: int
    target: int
    term: int
    node: NodeName = ""
    joins: bool = False
    host: Host = ""
    port: Port = 0
    slots: Count | None = None
    leaving: bool = False
    numbers: tuple[Numbers, ...] = ()
    total: Count = 0
    nodes: tuple[NodeAddress, ...] = ()
    workers: tuple[ProcessInfo, ...] = ()
    fork_servers: tuple[ProcessInfo, ...] = ()
    standby: tuple[ProcessInfo, ...] = ()
    exits: tuple[WorkerExit, ...] = ()
    draining: tuple[WorkerId, ...] = ()
    stopping: bool = False
    awaiting_data: tuple[WorkerId, ...] = ()
    importing: bool = False
    by_hand: bool = False
    claimed: Count = 0
    closed: str = ""
    sites: tuple[SiteName, ...] = ()
    ticket: str = ""


class SetTarget(ControlMessage, frozen=True, kw_only=True):
    """Coordinator to agent: keep this many workers running from now on.

    Args:
        target: the number of workers on the agent's node.
        drain: the workers of the run that are leaving.
        by_hand: a user has set the number of workers of the run.
        total: the number of workers of the run.
        numbers: more numbers for workers, as first number and end; None: the agent has enough.
        leave: the node must leave the run, because a user has drained it.
        claimed: the number of the newest claimed generation; 0: none was claimed. A node that does not
            hear the coordinator finds later ones in the claim list.
        closed: why the node gets no further workers; empty: it does.
    """

    target: int
    drain: tuple[WorkerId, ...] = ()
    by_hand: bool = False
    total: int = 0
    nodes: tuple[NodeAddress, ...] = ()
    numbers: Numbers | None = None
    leave: bool = False
    claimed: Count = 0
    closed: str = ""


class KillWorker(ControlMessage, frozen=True, kw_only=True):
    """Coordinator to agent: kill this worker's process, for ``why``."""

    worker: WorkerId
    why: str = "its peers lost the connection to it, so it was killed"


class LeaveRecorded(ControlMessage, frozen=True, kw_only=True):
    """Coordinator to agent: the run has recorded that this machine has left, so its agent may end."""


class HandOver(ControlMessage, frozen=True, kw_only=True):
    """Coordinator to agent: the machine in charge has left the run, and this one is in charge next."""


class RunOver(ControlMessage, frozen=True, kw_only=True):
    """Coordinator to agent: every worker is dismissed; ``code``, ``why`` and ``traceback`` are the outcome.

    ``lost`` is True if every copy of some state is lost, so that only the newest checkpoint remains.
    """

    code: int
    why: str = ""
    traceback: str = ""
    lost: bool = False


# -- command line to coordinator and back ------------------------------------------------------------------


class AskResize(ControlMessage, frozen=True, kw_only=True):
    """Change the number of workers.

    Args:
        limits: the current fewest and most, if a controller decides on the number of workers; None: a user
            decides.
        unless_by_hand: refuse the request while a number that a user has set holds.
    """

    workers: int
    limits: tuple[int, int] | None = None
    unless_by_hand: bool = False


class AskDrain(ControlMessage, frozen=True, kw_only=True):
    worker: WorkerId


class AskDrainNode(ControlMessage, frozen=True, kw_only=True):
    """Let a machine leave the run with all its workers; ``node`` is empty for the first one."""

    node: NodeName


class AskStop(ControlMessage, frozen=True, kw_only=True):
    """Drain the whole run at the next commit.

    Args:
        who: requests it.
        why: a sentence; empty: unknown.
    """

    who: Literal["user", "controller"] = "user"
    why: str = ""


class AskEvict(ControlMessage, frozen=True, kw_only=True):
    """Kill the workers that are still leaving."""


class AskCheckpoint(ControlMessage, frozen=True, kw_only=True):
    """Save the state after one of the next steps."""


class AskStatus(ControlMessage, frozen=True, kw_only=True):
    pass


class Answer(ControlMessage, frozen=True, kw_only=True):
    """The answer to any request: ``ok``, or ``why`` not; the rest answers `AskStatus` and changes.

    ``note`` says what the run waits for if only its user can change that; otherwise it is empty.
    ``by_hand`` is True if a user, not a controller, last set the target; ``nodes`` are the machines, and
    ``time_s`` is the Unix time on the machine in charge.
    """

    ok: bool
    why: str = ""
    note: str = ""
    term: int = 0
    generation: int = 0
    step: int = 0
    steps: int = 0
    loss: float | None = None
    target: int = 0
    by_hand: bool = False
    state: str = ""
    processes: tuple[ProcessInfo, ...] = ()
    nodes: tuple[NodeAddress, ...] = ()
    time_s: float = 0.0
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
ToAgent: TypeAlias = SetTarget | KillWorker | LeaveRecorded | HandOver | RunOver
Ask: TypeAlias = AskResize | AskDrain | AskDrainNode | AskEvict | AskStop | AskCheckpoint | AskStatus

ToCoordinator: TypeAlias = FromWorker | FromAgent | Ask


def encode(message: object) -> bytes:
    """Return a message as JSON.

    Texts of the script, such as a name of a file that is not UTF-8, may have halves of surrogate pairs, which
    JSON cannot hold; they are escaped.
    """
    try:
        return msgspec.json.encode(message)
    except UnicodeEncodeError:
        return msgspec.json.encode(_escape_surrogates(msgspec.to_builtins(message)))


def _escape_surrogates(value: object) -> object:
    if isinstance(value, str):
        return value.encode("utf-8", "backslashreplace").decode()
    if isinstance(value, dict):
        return {_escape_surrogates(key): _escape_surrogates(entry) for key, entry in value.items()}
    return list(map(_escape_surrogates, value)) if isinstance(value, list | tuple) else value


LARGEST_MESSAGE_BYTES = 64 << 20
"""The size limit of a message; both ends of a connection use it as the limit of a frame."""
LARGEST_ANSWER_BYTES = 16 << 20

decode_to_coordinator: Decoder[ToCoordinator] = Decoder(ToCoordinator, at_most_bytes=LARGEST_MESSAGE_BYTES)
decode_to_worker: Decoder[ToWorker] = Decoder(ToWorker, at_most_bytes=LARGEST_MESSAGE_BYTES)
decode_to_agent: Decoder[ToAgent] = Decoder(ToAgent, at_most_bytes=LARGEST_MESSAGE_BYTES)
decode_answer: Decoder[Answer] = Decoder(Answer, at_most_bytes=LARGEST_ANSWER_BYTES)
