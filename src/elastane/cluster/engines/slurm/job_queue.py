"""The jobs that Slurm shows, and what they say about agents. Pure."""

import re
from collections.abc import Iterable
from datetime import UTC, datetime

import msgspec

from elastane.cluster.engines.slurm.submission import find_agent_of_job
from elastane.cluster.nouns.agents import AgentId, AgentState, SeenAgent
from elastane.common.safe_text import escape_line

COLUMNS = {
    "JobID": 20,
    "State": 24,
    "exit_code": 16,
    "EndTime": 24,
    "NodeList": 128,
    "NumCPUs": 12,
    "tres-per-node": 128,
    "Name": 64,
    "Reason": 160,
}
"""Fields of ``squeue`` and their widths: without a width it cuts them after 20 characters. The reason is
last, because it is free text. The fields before it are names, and a name of ours has no separator."""
SEPARATOR = "|"
FORMAT = ",".join(f"{name}:{width}{SEPARATOR}" for name, width in COLUMNS.items())

ACCOUNTING = ("NodeList", "State", "JobName")
"""Fields of ``sacct``; the name is last, because it is free text."""
ACCOUNTING_FORMAT = ",".join(ACCOUNTING)

PENDING = frozenset({"PENDING", "REQUEUED", "REQUEUE_FED", "REQUEUE_HOLD", "RESV_DEL_HOLD", "SPECIAL_EXIT"})
LEAVING = frozenset({"COMPLETING", "STAGE_OUT", "SIGNALING"})
GONE = {
    "COMPLETED": "",
    "FAILED": "",
    "CANCELLED": "its job was cancelled",
    "TIMEOUT": "its time limit ended it",
    "DEADLINE": "its deadline ended it",
    "PREEMPTED": "Slurm preempted it for another job",
    "NODE_FAIL": "its machine failed",
    "BOOT_FAIL": "its machine did not boot",
    "OUT_OF_MEMORY": "it used more memory than its job has",
    "REVOKED": "its job runs in another cluster of the federation",
}
"""States in which a job has ended, and why; empty: the exit code says it."""
RUNNING = frozenset({"RUNNING", "CONFIGURING", "RESIZING", "STOPPED", "SUSPENDED"})
NO_RESULT = frozenset({"NODE_FAIL", "BOOT_FAIL", "REVOKED"})
"""States of ended jobs in which Slurm shows an exit code that is not theirs."""
REFUSED_REASON = "BadConstraints"
NOT_LAUNCHED = "JobLaunchFailure"
NOT_FOUND, NOT_EXECUTABLE = 127, 126
"""Exit codes of a shell for a command that it does not find or cannot start."""
NOT_CONTAINED = 255
"""Exit code of Apptainer if it cannot start a container. No agent has it."""
SIGNAL_BITS, CORE_BIT = 0x7F, 0x80
"""Parts of a status of wait(2): the signal, and whether there is a core dump."""

_JOB_ID = re.compile(r"[0-9]{1,18}")
_STATE = re.compile(r"[A-Z_]{1,32}")
_NUMBER = re.compile(r"[0-9]{1,9}")
_EXIT = re.compile(r"([0-9]{1,10})(?::([0-9]{1,3}))?")
_MACHINE = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,127}")
LONGEST_REASON = 160
_REASONS = {
    "Resources": "no machine has enough free devices, processors or memory now",
    "Priority": "other jobs have a higher priority",
    "Dependency": "it waits for another job",
    "BeginTime": "its time to begin has not come",
    "Cleaning": "the machines are cleaned up after an earlier attempt to start it",
    "JobHeldUser": "its user holds it; scontrol release lets it go on",
    "JobHeldAdmin": "an operator of Slurm holds it",
    "Licenses": "the licences that it asks for are taken",
    "PartitionDown": "its partition is down",
    "PartitionInactive": "its partition starts no jobs now",
    "PartitionNodeLimit": "its partition does not allow this number of machines",
    "PartitionTimeLimit": "its time limit is longer than that of its partition",
    "PartitionConfig": "its partition does not allow what it asks for",
    "ReqNodeNotAvail": "machines that it needs are down, drained or reserved",
    "NodeDown": "a machine that it needs is down",
    "Reservation": "its reservation has not begun, or is full",
    "ReservationDeleted": "its reservation was removed",
    "BadConstraints": "no machine has what it asks for",
    "InvalidAccount": "its account is not valid",
    "InvalidQOS": "its QOS is not valid",
    "QOSNotAllowed": "its QOS is not allowed for its account or partition",
    "AccountNotAllowed": "its account may not use its partition",
    "JobArrayTaskLimit": "its array of jobs has a limit",
    "FrontEndDown": "a machine that it needs is down",
    "DeadLine": "it cannot end before its deadline",
    "None": "Slurm has not looked at it yet",
    "": "Slurm has not looked at it yet",
}
_LIMITS = (
    (re.compile(r"QOS\w*User\w*"), "a limit of its QOS for each user is reached"),
    (re.compile(r"QOS\w*Account\w*"), "a limit of its QOS for each account is reached"),
    (re.compile(r"QOSGrp\w*"), "a limit of its QOS for all users is reached"),
    (re.compile(r"QOS\w*"), "a limit of its QOS is reached, or it asks for more than that"),
    (re.compile(r"AssocGrp\w*"), "a limit of its account is reached"),
    (re.compile(r"Assoc\w*"), "a limit of its user in its account is reached"),
    (re.compile(r"MaxGRES\w*"), "it asks for more devices than its account or QOS allows"),
)


class QueuedJob(msgspec.Struct, frozen=True, kw_only=True):
    """A job of an agent, as ``squeue`` shows it. An unreadable field counts as absent.

    Args:
        id: its number.
        state: a word of Slurm; empty: unreadable.
        exit_code: None: unknown, or a signal ended it.
        signal: that ended it; 0: none.
        end_s: when it ended or will end at the latest, in seconds since 1970; None: unknown, or never.
        node: its machine; empty: none.
        cpus: how many processors it has or asks for.
        devices: what it asks for beside processors, as Slurm writes it.
        reason: a word of Slurm, or a text.
    """

    id: int
    agent: AgentId
    state: str
    exit_code: int | None = None
    signal: int = 0
    end_s: float | None = None
    node: str = ""
    cpus: int = 0
    devices: str = ""
    reason: str = ""

    @property
    def stage(self) -> AgentState:
        """The state of its agent; running for an unknown state of a job, because it may hold devices."""
        if self.state in PENDING:
            return "pending"
        if self.state in LEAVING:
            return "leaving"
        return "gone" if self.state in GONE else "running"


def parse_queue(output: str, cluster: str) -> tuple[QueuedJob, ...]:
    """Return the jobs of the agents of a cluster from the output of ``squeue`` with `FORMAT`.

    Rows of other jobs are left out, and jobs that Slurm has refused: it shows them as failed for a while.
    """
    jobs = (_parse_row(row, cluster) for row in output.split("\n"))
    return tuple(job for job in jobs if job is not None and not _was_refused(job))


def parse_accounting(output: str, cluster: str) -> frozenset[AgentId]:
    """Return the agents of a cluster with a job in ``sacct --parsable2`` with `ACCOUNTING_FORMAT`."""
    found = set()
    for row in output.split("\n"):
        node, _, rest = row.partition(SEPARATOR)
        state, _, name = rest.partition(SEPARATOR)
        agent = find_agent_of_job(name, cluster)
        # Slurm has refused those that failed without a machine.
        if agent is not None and (state != "FAILED" or _MACHINE.fullmatch(node)):
            found.add(agent)
    return frozenset(found)


def choose_jobs(jobs: Iterable[QueuedJob]) -> dict[AgentId, QueuedJob]:
    """Return the job that counts for each agent: the oldest that has not ended, or else the newest.

    An agent has several jobs if Slurm was slow to accept the first and it was asked for again.
    """
    chosen: dict[AgentId, QueuedJob] = {}
    for job in sorted(jobs, key=lambda job: job.id):
        if job.agent not in chosen or chosen[job.agent].stage == "gone":
            chosen[job.agent] = job
    return chosen


def list_doubles(jobs: Iterable[QueuedJob]) -> tuple[QueuedJob, ...]:
    """Return the jobs that have not ended, of agents that have an older one."""
    living = [job for job in jobs if job.stage != "gone"]
    counted = choose_jobs(living)
    return tuple(job for job in living if counted[job.agent].id != job.id)


def describe_agent(job: QueuedJob) -> SeenAgent:
    """Return what a job says about its agent."""
    stage = job.stage
    return SeenAgent(
        id=job.agent,
        state=stage,
        node=job.node,
        why=_explain(job),
        exit_code=job.exit_code if stage == "gone" else None,
        ended_s=job.end_s if stage == "gone" else None,
        until_s=job.end_s if stage == "running" else None,
    )


def _parse_row(row: str, cluster: str) -> QueuedJob | None:
    """Return the job of one row; None: it is not one of an agent of this cluster."""
    fields = [field.strip() for field in row.split(SEPARATOR, len(COLUMNS) - 1)]
    if len(fields) != len(COLUMNS):
        return None
    job_id, state, code, end, node, cpus, devices, name, reason = fields
    agent = find_agent_of_job(name, cluster)
    if agent is None or not _JOB_ID.fullmatch(job_id):
        return None
    exit_code, ended_by = _parse_exit(code, state, node)
    return QueuedJob(
        id=int(job_id),
        agent=agent,
        state=state if _STATE.fullmatch(state) else "",
        exit_code=exit_code,
        signal=ended_by,
        end_s=_parse_time(end),
        node=node if _MACHINE.fullmatch(node) else "",
        cpus=int(cpus) if _NUMBER.fullmatch(cpus) else 0,
        devices=devices,
        reason=reason.removesuffix(SEPARATOR).strip(),
    )


def _parse_exit(text: str, state: str, node: str) -> tuple[int | None, int]:
    """Return the exit code, or None and the signal that ended the job, if any.

    Slurm writes a status of wait(2), or ``CODE:SIGNAL`` in some versions and programs.
    """
    match = _EXIT.fullmatch(text)
    if match is None or not node or state in NO_RESULT:
        return None, 0
    number = int(match[1])
    if match[2] is not None:
        return (None, int(match[2])) if int(match[2]) else (number, 0)
    if not number & SIGNAL_BITS:
        return number >> 8, 0
    # Larger numbers are errors of Slurm before the script began.
    return None, number & SIGNAL_BITS if number <= SIGNAL_BITS | CORE_BIT else 0


def _parse_time(text: str) -> float | None:
    """Return the seconds since 1970 of a time in UTC; None: it is another text, such as ``NONE``."""
    try:
        return datetime.strptime(text, "%Y-%m-%dT%H:%M:%S").replace(tzinfo=UTC).timestamp()
    except ValueError:
        return None


def _was_refused(job: QueuedJob) -> bool:
    return job.state == "FAILED" and job.reason == REFUSED_REASON and not job.node


def _explain(job: QueuedJob) -> str:
    if job.stage == "pending":
        return explain_pending(job.reason)
    if job.stage == "gone":
        return _explain_end(job)
    known = job.state in RUNNING or job.stage == "leaving"
    return "" if known else f"Slurm calls the state of its job {job.state or 'by no readable word'}"


def _explain_end(job: QueuedJob) -> str:
    if why := GONE[job.state]:
        return why if job.node or job.state != "CANCELLED" else f"{why} before it began"
    if job.reason == NOT_LAUNCHED and not job.signal:
        return (
            f"Slurm could not start its script on {job.node or 'a machine'} ({NOT_LAUNCHED}): "
            "perhaps the folder of its output is missing there"
        )
    if job.signal:
        return f"signal {job.signal} ended it"
    if job.exit_code is None:
        verb = "ended" if job.state == "COMPLETED" else "failed"
        return f"its job {verb} ({escape_line(job.reason)})" if job.reason else f"its job {verb}"
    code = f"it ended with exit code {job.exit_code}"
    if job.exit_code in (NOT_FOUND, NOT_EXECUTABLE):
        return f"{code}: the shell on {job.node} or its image could not start the command of Elastane"
    if job.exit_code == NOT_CONTAINED:
        return f"{code}: the container of its image could not be started"
    return code


def explain_pending(reason: str) -> str:
    """Return why a job waits, with the word of ``squeue``, for which people can search."""
    word, _, details = reason.partition(",")
    known = _REASONS.get(word) or next((text for form, text in _LIMITS if form.fullmatch(word)), None)
    if known is None:
        return f"Slurm gives the reason {escape_line(reason, LONGEST_REASON)}"
    if not word or word == "None":
        return known
    return f"{known} ({escape_line(word + ',' * bool(details) + details, LONGEST_REASON)})"
