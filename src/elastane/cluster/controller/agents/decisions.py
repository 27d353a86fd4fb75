"""Decisions about the agents of one job: how many to start, which to end, and what each should do. Pure."""

import re
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from math import gcd

import msgspec

from elastane.cluster.controller.agents.agent_job import AgentJob
from elastane.cluster.controller.agents.stored_agent import StoredAgent, StoredRun
from elastane.cluster.controller.jobs.retries import MISSING_OUTCOME
from elastane.cluster.nouns.agents import SeenAgent
from elastane.cluster.nouns.arrivals import AskAgain, Begin, Instruction, Join, NotWanted
from elastane.cluster.nouns.jobs import JobSpec
from elastane.cluster.nouns.pools import Pool
from elastane.common.safe_text import fold_text
from elastane.run.nouns.attempts import RETRYABLE, AttemptOutcome
from elastane.run.nouns.membership import SiteName

ASK_AGAIN_S = 1.0
AFTER_OUTCOME_S = 30.0
"""How long agents may take to end after the outcome of their attempt is recorded."""
YOUNG_S = 60.0
MOST_DOUBLINGS = 10
ERROR_MARKS = ("FATAL", "[ERROR]")
"""The lines of Apptainer, and of Enroot under Pyxis, that name the cause. Others follow them."""
LONGEST_WHY = 1000
_TERMINAL_CODE = re.compile(r"\x1b\[[0-9;]{0,20}m")
FIRST_PAUSE_S, LONGEST_PAUSE_S = 5.0, 300.0
"""The pauses before agents are asked for again, after some could not be started or have failed to join."""


# -- what engines show ---------------------------------------------------------------------------------------


def update_agent(agent: StoredAgent, seen: SeenAgent | None, now_s: float, *, is_heard: bool) -> StoredAgent:
    """Return an agent after a complete answer of its engine.

    Args:
        seen: None: the engine does not know it.
        is_heard: its run hears it. What the run hears counts for more than what the engine says: an engine
            that has lost a machine calls its agents ended while they train on.
    """
    if seen is None:
        if agent.state == "asked" and agent.leave_by_s is None:
            # The engine may never have got the request; it is repeated.
            return agent
        why = agent.why or "its engine does not know it any more"
        seen = SeenAgent(id="", state="gone", why=why, is_replaceable=True)
    if seen.state == "gone":
        if is_heard:
            return msgspec.structs.replace(
                agent, why="its engine calls it ended, but its run still hears it; its devices count as held"
            )
        return msgspec.structs.replace(
            agent,
            state="gone",
            node=seen.node or agent.node,
            # What it has said itself is nearer to the cause.
            why=agent.why if agent.exit_code is not None else seen.why,
            exit_code=agent.exit_code if agent.exit_code is not None else seen.exit_code,
            is_replaceable=seen.is_replaceable,
            ended_s=now_s if seen.ended_s is None else min(now_s, max(agent.asked_s, seen.ended_s)),
        )
    started_s = agent.started_s
    if started_s is None and seen.state != "pending":
        started_s = now_s
    is_here = agent.arrived_s is not None and seen.state == "running"
    # A controller that was killed in the midst of its request may have left it incomplete: it is repeated.
    is_unnoted = agent.state == "asked" and seen.state == "pending" and agent.leave_by_s is None
    return msgspec.structs.replace(
        agent,
        state="asked" if is_unnoted else "arrived" if is_here else seen.state,
        node=seen.node or agent.node,
        why=agent.why if agent.exit_code is not None else seen.why,
        started_s=started_s,
    )


def lacks_reason(agent: StoredAgent, seen: SeenAgent) -> bool:
    """Return whether an agent has failed before it arrived, and so without having said why."""
    is_silent = agent.arrived_s is None and agent.exit_code is None and agent.leave_by_s is None
    return is_silent and seen.state == "gone" and bool(seen.exit_code)


def add_last_words(seen: SeenAgent, log: str) -> SeenAgent:
    """Return an agent that is gone, with the words of its log that say why.

    A program that could not start it, such as one for containers, has written them.

    Args:
        log: the end of it, from any program.
    """
    lines = [
        folded for line in log.splitlines() if (folded := fold_text(_TERMINAL_CODE.sub("", line)).strip())
    ]
    # What srun says at the end is only that its step has failed.
    causes = [line for line in lines if not line.startswith("srun: ")] or lines
    if not causes:
        return seen
    words = next((line for mark in ERROR_MARKS for line in reversed(causes) if mark in line), causes[-1])
    why = f"{seen.why}; its log says: {words}" if seen.why else f"its log says: {words}"
    return msgspec.structs.replace(seen, why=why[:LONGEST_WHY])


def has_failed(agent: StoredAgent) -> bool:
    """Return whether an agent that is gone ended for a reason that may hold for the next one too.

    One that took part and was lost with its machine is replaced at once, unless it was lost soon: it may have
    been killed for memory.
    """
    if not agent.is_gone or agent.leave_by_s is not None:
        return False
    if not agent.attempt or agent.exit_code is not None:
        return agent.exit_code != 0 or not agent.attempt
    return agent.ended_s is None or not has_stayed(agent, agent.ended_s)


def has_stayed(agent: StoredAgent, now_s: float) -> bool:
    """Return whether an agent has been there for so long that its end would be no failure to start."""
    return agent.arrived_s is not None and now_s - agent.arrived_s >= YOUNG_S


def takes_part(agent: StoredAgent, run: StoredRun | None) -> bool:
    """Return whether an agent may have processes of the newest attempt."""
    return run is not None and agent.attempt == run.attempt and not agent.is_gone


# -- how many agents a job needs -----------------------------------------------------------------------------


def count_wanted(agents: Iterable[StoredAgent]) -> dict[str, int]:
    """Return the workers of the wanted agents, by pool."""
    found = Counter[str]()
    for agent in agents:
        if agent.is_wanted:
            found[agent.pool] += agent.workers
    return dict(found)


def choose_agent_workers(spec: JobSpec, pool: Pool) -> int:
    """Return how many workers each agent of a job has in a pool of an engine.

    An engine gives back an agent only as a whole. So every size of the job is a multiple of this number, and
    no shrink has to divide an agent.
    """
    policy, (low, high) = spec.elastic_policy, spec.elastic_policy.limits
    if policy.replica_discrete_values:
        common = gcd(*policy.replica_discrete_values)
    elif low == high:
        common = low
    else:
        # Without a step the scheduler may choose any size in between.
        common = gcd(low, policy.replica_increment_step or 1)
    most = min(common, pool.count_agent_workers(spec.worker_devices))
    return next(workers for workers in range(most, 0, -1) if common % workers == 0)


def choose_asks(
    job: AgentJob, agents: Iterable[StoredAgent], sizes: Mapping[str, int]
) -> dict[str, tuple[int, ...]]:
    """Return the agents to ask for, by pool: the workers of each, with at most ``sizes`` in that pool."""
    here, found = count_wanted(agents), dict[str, tuple[int, ...]]()
    for pool, workers in job.wanted.items():
        missing, size = workers - here.get(pool, 0), sizes.get(pool, 1)
        if missing > 0:
            whole, rest = divmod(missing, size)
            # A grant that is divided among pools may be a multiple of the size only as a whole.
            found[pool] = (size,) * whole + (1,) * rest
    return found


def choose_deadlines(
    agents: Sequence[StoredAgent],
    job: AgentJob | None,
    run: StoredRun | None,
    now_s: float,
    *,
    is_over: bool = False,
    leaving_nodes: Collection[str] = (),
) -> dict[int, float]:
    """Return which agents should leave from now on, and by when, by number.

    Those beyond a gang go first, because its places are sure, then those that have not arrived, then those on
    nodes that go away, then the newest. While a job is stopped, its run ends by an order, and its agents with
    it. If each has more workers than the job has to give back, one leaves nevertheless, and the job asks for
    what it lacks then.

    Args:
        job: None: it has ended, or its record cannot be read.
        is_over: the outcome of the newest attempt is recorded.
        leaving_nodes: nodes that are drained or will be taken away.
    """
    found: dict[int, float] = {}
    here, smallest = count_wanted(agents), dict[str, StoredAgent]()
    order = sorted(
        (agent for agent in agents if agent.is_wanted),
        key=lambda agent: (
            agent.gang != 0,
            agent.has_arrived,
            agent.node not in leaving_nodes,
            -agent.number,
        ),
    )
    for agent in order:
        if takes_part(agent, run) and is_over:
            found[agent.number] = now_s + AFTER_OUTCOME_S
        elif takes_part(agent, run) and (job is None or not job.wanted):
            continue
        elif job is None:
            found[agent.number] = now_s
        elif here[agent.pool] - agent.workers >= job.wanted.get(agent.pool, 0):
            here[agent.pool] -= agent.workers
            found[agent.number] = job.choose_deadline(now_s)
        elif agent.workers < smallest.get(agent.pool, agent).workers or agent.pool not in smallest:
            smallest[agent.pool] = agent
    for pool, agent in smallest.items():
        if job is not None and here[pool] > job.wanted.get(pool, 0):
            found[agent.number] = job.choose_deadline(now_s)
    return found


def must_hear(agent: StoredAgent, run: StoredRun | None, now_s: float, *, is_over: bool) -> bool:
    """Return whether an agent that should leave must get a notice, or be ended.

    One that took part in an attempt that is over ends by itself, if it has the time.
    """
    return not (is_over and takes_part(agent, run)) or compute_grace_s(agent, now_s) == 0


def compute_grace_s(agent: StoredAgent, now_s: float) -> float:
    """Return how long an agent that should leave may still take, in seconds."""
    if agent.leave_by_s is None or (agent.started_s is None and agent.arrived_s is None):
        # One that has not begun has nothing to finish.
        return 0.0
    return max(0.0, agent.leave_by_s - now_s)


def compute_setback_s(failures: int) -> float:
    """Return how long to wait after this many failures in a row to start agents, or to join."""
    doublings = min(failures - 1, MOST_DOUBLINGS)
    return 0.0 if not failures else min(LONGEST_PAUSE_S, FIRST_PAUSE_S * 2.0**doublings)


# -- what agents should do -----------------------------------------------------------------------------------


def choose_instruction(
    agent: StoredAgent,
    job: AgentJob | None,
    run: StoredRun | None,
    agents: Iterable[StoredAgent],
    *,
    is_shared: bool = True,
    site: str = "",
) -> Instruction:
    """Return what an agent that has arrived should do. The same question gets the same answer again.

    Args:
        job: None: it has ended, or its record cannot be read.
        run: the newest attempt that agents have begun; None: none has.
        agents: of the job that are not gone.
        is_shared: the machines of its engine share the home of the controller.
        site: of its pool.
    """
    sites = () if job is None else tuple(one for one in job.spec.data.sites if one == site)
    if agent.leave_by_s is not None or job is None or not job.wanted:
        return NotWanted(why=f"job {agent.job} does not need it any more")
    if run is None or run.attempt < job.attempt:
        here = sum(other.workers for other in agents if other.has_arrived and other.is_wanted)
        if here < job.limits[0]:
            why = f"{here} of the {job.limits[0]} workers with which job {job.name} begins have arrived"
            return AskAgain(seconds=ASK_AGAIN_S, why=why)
        return _make_begin(agent, job, sites, is_shared=is_shared)
    if run.beginner == agent.number:
        return _make_begin(agent, job, sites, is_shared=is_shared)
    if not run.answers:
        return AskAgain(
            seconds=ASK_AGAIN_S, why=f"another machine begins attempt {run.attempt} of {job.name}"
        )
    return Join(
        run_dir=job.run_dir,
        attempt=run.attempt,
        workers=agent.workers,
        spec=job.spec,
        is_shared=is_shared,
        sites=sites,
    )


def _make_begin(agent: StoredAgent, job: AgentJob, sites: tuple[SiteName, ...], *, is_shared: bool) -> Begin:
    return Begin(
        run_dir=job.run_dir,
        attempt=job.attempt,
        workers=agent.workers,
        limits=job.limits,
        spec=job.spec,
        submitted_s=job.submitted_s,
        is_shared=is_shared,
        sites=sites,
    )


# -- how an attempt ended ------------------------------------------------------------------------------------


def judge_loss(last: StoredAgent) -> AttemptOutcome:
    """Return how an attempt ended that began, and of which all agents were lost, ``last`` the last one."""
    why = f"{MISSING_OUTCOME.why}: {last.why}" if last.why else MISSING_OUTCOME.why
    return AttemptOutcome(code=MISSING_OUTCOME.code, why=why)


def judge_start(beginner: StoredAgent) -> AttemptOutcome:
    """Return how an attempt ended that has recorded nothing, and that ``beginner`` should have begun."""
    code = beginner.exit_code or RETRYABLE
    where = f" on {beginner.node}" if beginner.node else ""
    return AttemptOutcome(
        code=code, why=f"its agent{where} ended before the attempt began: {beginner.why or 'it said nothing'}"
    )
