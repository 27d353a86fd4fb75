"""The batch job of an agent: the options of ``sbatch``, and the script on its standard input. Pure."""

import math
import re
import shlex

import msgspec

from elastane.cluster.engines.slurm.containers import AgentCommand, build_container_command
from elastane.cluster.engines.slurm.options import SlurmOptions, SlurmPool
from elastane.cluster.nouns.agents import AGENT_ID, AgentAsk, AgentId, belongs_to, check_ask
from elastane.common.errors import BadInput
from elastane.common.safe_text import escape_line

NO_OUTPUT = "/dev/null"
END_OF_TICKET = "END_OF_ELASTANE_TICKET"
NOTICE = "USR1"
"""What the agent gets before its time limit. Slurm sends SIGTERM when the time is over."""
LONGEST_NOTICE_S = 65535
LONGEST_COMMENT = 200
_LOG = re.compile(r"/[^\x00-\x1f\x7f\\]{0,4000}")
"""A backslash would switch off the patterns of Slurm."""
MINUTE_S = 60.0
MEBIBYTE = 1 << 20
PREFIX = "elastane-"
_JOB_NAME = re.compile(rf"{PREFIX}({AGENT_ID})")


class Submission(msgspec.Struct, frozen=True):
    """What ``sbatch`` gets.

    Args:
        words: its options. Every user of the machine can read them while it runs.
        script: its standard input, with the ticket, which only the owner and operators of Slurm can read.
    """

    words: tuple[str, ...]
    script: str


def build_submission(ask: AgentAsk, pool: SlurmPool, options: SlurmOptions, now_s: float) -> Submission:
    """Return the job of an agent that is asked for now; `BadInput`: there can be none."""
    script = build_script(ask, options)
    words = (
        "--parsable",
        # An agent that is gone is replaced under a new id. The same one must not begin a second time.
        "--no-requeue",
        "--nodes=1",
        "--ntasks=1",
        f"--job-name={name_job(ask.id)}",
        f"--comment={escape_line(ask.job, LONGEST_COMMENT)}",
        # The environment of this process has secrets. The job gets that of a login on its machine.
        "--export=NONE",
        # The folder of this process need not exist there.
        "--chdir=/",
        f"--output={_choose_output(ask, options)}",
        "--open-mode=append",
        *_build_time_words(ask, pool, now_s),
        *_build_place_words(pool),
        *_build_device_words(ask, pool),
    )
    return Submission(words, script)


def _choose_output(ask: AgentAsk, options: SlurmOptions) -> str:
    """Return the file for the output of an agent, as a pattern of Slurm."""
    if options.output or not ask.log:
        return options.output or NO_OUTPUT
    if not _LOG.fullmatch(ask.log):
        raise BadInput(f"agent {ask.id} cannot write to {ask.log!r}", do="name an absolute path")
    return ask.log.replace("%", "%%")


def build_script(ask: AgentAsk, options: SlurmOptions) -> str:
    """Return the script of an agent's job.

    Without an image, and with Apptainer, it ends as the agent: signals for the batch process reach it, and no
    shell.

    Raises:
        BadInput: see `check_ask`; or the image cannot be run.
    """
    check_ask(ask)
    if ask.ticket == END_OF_TICKET:
        raise BadInput(f"the ticket of agent {ask.id} is malformed", means="it would end its own lines")
    if ask.image:
        agent = build_container_command(ask, options)
    else:
        agent = AgentCommand(command=f"exec {shlex.join((*options.command, 'join', '-'))}")
    setup = f"{options.setup.rstrip()}\n" if options.setup.strip() else ""
    begin = f"{agent.before}{agent.command} <<'{END_OF_TICKET}'{' &' if agent.after else ''}"
    return f"#!/bin/bash\n{setup}{begin}\n{ask.ticket}\n{END_OF_TICKET}\n{agent.after}"


def compute_time_limit_min(ask: AgentAsk, pool: SlurmPool, now_s: float) -> int | None:
    """Return the time limit of a job in minutes, which is Slurm's unit; None: that of the partition.

    The time until ``until_s`` is rounded down. A job that begins late ends late: Slurm has no other limit.

    Raises:
        BadInput: ``until_s`` is less than a minute away.
    """
    limits = [] if pool.time_s is None else [math.ceil(pool.time_s / MINUTE_S)]
    if ask.until_s is not None:
        left_min = math.floor((ask.until_s - now_s) / MINUTE_S)
        if left_min < 1:
            raise BadInput(
                f"agent {ask.id} must end within {max(0.0, ask.until_s - now_s):.0f} s",
                means="the shortest time limit of Slurm is one minute",
            )
        limits.append(left_min)
    return min(limits, default=None)


def _build_time_words(ask: AgentAsk, pool: SlurmPool, now_s: float) -> tuple[str, ...]:
    limit_min = compute_time_limit_min(ask, pool, now_s)
    notice_s = min(math.ceil(max(0.0, ask.grace_s)), LONGEST_NOTICE_S)
    # `B`: only the batch process, which is the agent. It tells its workers.
    notice = (f"--signal=B:{NOTICE}@{notice_s}",) if notice_s else ()
    return notice if limit_min is None else (*notice, f"--time={limit_min}")


def _build_place_words(pool: SlurmPool) -> tuple[str, ...]:
    wanted = {
        "partition": pool.partition,
        "account": pool.account,
        "qos": pool.qos,
        "reservation": pool.reservation,
        "constraint": pool.constraint,
        "exclude": pool.exclude,
    }
    return tuple(f"--{name}={value}" for name, value in wanted.items() if value)


def _build_device_words(ask: AgentAsk, pool: SlurmPool) -> tuple[str, ...]:
    words = [f"--gres={pool.gres}:{ask.devices}"] if pool.gres else []
    if cpus := ask.cpus or pool.count_cpus(ask.devices):
        words.append(f"--cpus-per-task={cpus}")
    if memory_bytes := ask.memory_bytes or ask.devices * (pool.memory_bytes_per_device or 0):
        words.append(f"--mem={math.ceil(memory_bytes / MEBIBYTE)}M")
    return tuple(words)


def name_job(agent: AgentId) -> str:
    return f"{PREFIX}{agent}"


def find_agent_of_job(name: str, cluster: str) -> AgentId | None:
    """Return the agent of a cluster that a job belongs to; None: to none."""
    match = _JOB_NAME.fullmatch(name)
    return match[1] if match is not None and belongs_to(match[1], cluster) else None
