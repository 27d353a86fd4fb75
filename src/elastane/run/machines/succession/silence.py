"""The decision of a node's agent that does not hear the coordinator: wait, take charge, or end. Pure.

Workers train without a coordinator. So an agent ends them only if it knows that the run does not need them:
the claim list shows the end of the run, or the node has had no order of the run. While the list is away, the
agent waits. A node without which the run goes on waits too: it takes part again when it is reached again.
"""

import math
from collections.abc import Collection
from dataclasses import dataclass, field, replace
from typing import TypeAlias

from elastane.common.exit_codes import ExitCode
from elastane.run.machines.claims.history import find_claimed_outcome, list_generations
from elastane.run.machines.claims.records import HeldSlot, OutcomeClaim, TermClaim
from elastane.run.machines.succession.takeover import (
    Answers,
    CoordinatorHeard,
    SilenceView,
    decide_takeover,
    is_left_out,
)
from elastane.run.nouns.control import RunOver
from elastane.run.nouns.membership import NodeName, WorkerId
from elastane.run.nouns.silence_limits import SilenceLimits

LONGEST_SILENCE_S = 60.0
"""How long a node waits for a coordinator if the claim list answers and the run does not need the node.

It is about the patience of a user and the time that a coordinator needs to record all reports, not about
missed signs of life, so it does not depend on the run's `SilenceLimits`.
"""

LONGEST_FAILURE_S = 3600.0
"""How long a node on which coordinators keep dying waits for one of another node.

A cause such as a full disk may be mended meanwhile, and training goes on.
"""


@dataclass(frozen=True, slots=True)
class Silence:
    """What an agent has seen since it last heard the coordinator. Times are of one monotonic clock.

    Args:
        held: all slots of the claim list, as it last answered; None: it has not answered yet.
        is_away: it did not answer the last time.
        back_s: when it answered again after it had been away.
        outcome: of this attempt, in the list; None: the run is not over.
        outcome_s: when the outcome was first seen.
        sign: the time stamp that a coordinator in charge renews; None: not read yet.
        signed_s: when the agent first saw this time stamp.
        renewed_s: when it last saw the time stamp change.
        tried_s: when a coordinator last took charge, or was to.
    """

    held: tuple[HeldSlot, ...] | None = None
    is_away: bool = False
    back_s: float = -math.inf
    outcome: OutcomeClaim | None = None
    outcome_s: float = math.inf
    sign: float | None = None
    signed_s: float = -math.inf
    renewed_s: float = -math.inf
    tried_s: float = -math.inf


def record_outage(silence: Silence) -> Silence:
    """Return the silence after the claim list has not answered."""
    return replace(silence, is_away=True)


def record_answer(
    silence: Silence, held: tuple[HeldSlot, ...], sign: float, first_term: int, now_s: float
) -> Silence:
    """Return the silence after an answer of the claim list.

    Args:
        held: all slots of the list.
        sign: the time stamp that a coordinator in charge renews.
        first_term: the first term of the present attempt.
    """
    if silence.is_away:
        silence = replace(silence, is_away=False, back_s=now_s)
    if sign != silence.sign:
        renewed_s = silence.renewed_s if silence.sign is None else now_s
        silence = replace(silence, sign=sign, signed_s=now_s, renewed_s=renewed_s)
    if silence.held is not None and any(
        isinstance(held_slot.record, TermClaim) for held_slot in held[len(silence.held) :]
    ):
        silence = replace(silence, tried_s=now_s)
    outcome = find_claimed_outcome(held, first_term)
    if outcome is not None and silence.outcome is None:
        silence = replace(silence, outcome=outcome, outcome_s=now_s)
    return replace(silence, held=held)


def record_takeover(silence: Silence, now_s: float) -> Silence:
    """Return the silence after this node was to take charge."""
    return replace(silence, tried_s=now_s)


def answer_others(silence: Silence, silent_s: float, workers: int, now_s: float) -> CoordinatorHeard:
    """Return the answer of an agent to the others of the run.

    A coordinator that is to take charge counts as one that was heard, because its claim may not be in the
    list yet: the others leave it the time that it needs.

    Args:
        silent_s: how long the agent has not heard the coordinator.
        workers: how many workers live on its node.
    """
    return CoordinatorHeard(max(0.0, min(silent_s, now_s - silence.tried_s)), workers)


@dataclass(frozen=True, slots=True)
class SilentAgent:
    """An agent that does not hear the coordinator, at one moment.

    Args:
        silence: what it has seen since it last heard the coordinator.
        silent_s: how long it has not heard it.
        answers: of the other nodes of the run; None: they have not had time to answer.
        coordinator_node: the node of the silent coordinator.
        workers: the living workers of this node.
        total: how many workers the run should have.
        claimed: the newest claimed generation that the coordinator has named.
        first_term: the first term of the present attempt.
        is_new: this node has joined and has had no order yet.
        rests: coordinators keep dying on this node, and it leaves the charge to others for a while.
        has_failed: coordinators have kept dying on this node since it last heard one.
    """

    node: NodeName
    silence: Silence
    silent_s: float
    answers: Answers | None
    coordinator_node: NodeName
    limits: SilenceLimits
    workers: Collection[WorkerId] = field(default_factory=tuple)
    total: int = 0
    claimed: int = 0
    first_term: int = 1
    is_new: bool = False
    rests: bool = False
    has_failed: bool = False


@dataclass(frozen=True, slots=True)
class Wait:
    """Go on without a coordinator."""

    why: str


@dataclass(frozen=True, slots=True)
class TakeCharge:
    """Start the coordinator of the next term.

    Args:
        silent_s: how long all agents of the run have had time for a coordinator, and heard none.
        answering: the other nodes with agents that answered.
        has_left: the machine in charge has left the run, and has handed over.
    """

    silent_s: float
    answering: tuple[NodeName, ...]
    why: str
    has_left: bool = False


@dataclass(frozen=True, slots=True)
class EndAgent:
    """End this agent and its workers.

    Args:
        is_outcome: it is the outcome of the run; otherwise this node ends and the run may go on.
    """

    over: RunOver
    is_outcome: bool


SilenceDecision: TypeAlias = Wait | TakeCharge | EndAgent


def decide_in_silence(agent: SilentAgent, now_s: float) -> SilenceDecision:
    """Decide what an agent does that does not hear the coordinator."""
    silence = agent.silence
    if silence.held is None or silence.is_away:
        return Wait("the claim list is away")
    # A coordinator that has waited for the list needs time, as one that has just taken charge.
    quiet_s = min(agent.silent_s, now_s - silence.back_s)
    if (ending := _find_end(agent, quiet_s, now_s)) is not None:
        return ending
    if agent.answers is None:
        return Wait("the other nodes have not had time to answer")
    if agent.rests:
        return Wait("coordinators keep dying on this node")
    later = [
        claim
        for claim in list_generations(silence.held)
        if claim.number > agent.claimed and claim.term >= agent.first_term
    ]
    view = SilenceView(
        agent.node,
        min(quiet_s, now_s - silence.tried_s),
        agent.answers,
        agent.coordinator_node,
        agent.limits,
        left_out=is_left_out(later, agent.workers),
        unseen_s=now_s - silence.signed_s,
        renewed_s=now_s - silence.renewed_s,
        workers=len(agent.workers),
        total=agent.total,
        is_new=agent.is_new,
    )
    takeover = decide_takeover(view)
    if not takeover.now:
        return Wait(takeover.why)
    answering = tuple(sorted(node for node, answer in agent.answers.items() if answer is not None))
    return TakeCharge(view.silent_s, answering, takeover.why)


def follow_leaver(node: NodeName, leaver: NodeName, nodes: Collection[NodeName]) -> TakeCharge:
    """Return how a node takes charge to which the machine in charge has handed over.

    The claim list still decides: if the coordinator that hands over lives on, it loses its term.

    Args:
        leaver: the node that was in charge.
        nodes: of the run, in the newest order.
    """
    others = tuple(sorted(set(nodes) - {node, leaver}))
    return TakeCharge(0.0, others, "the machine in charge has left the run", has_left=True)


def _find_end(agent: SilentAgent, quiet_s: float, now_s: float) -> EndAgent | None:
    """Return the end of an agent that the run does not need; None: it stays.

    Args:
        quiet_s: how long the claim list has answered, and no coordinator.
    """
    outcome = agent.silence.outcome
    if outcome is not None and now_s - agent.silence.outcome_s > LONGEST_SILENCE_S:
        # Until then a coordinator can say so itself, after it has recorded all that the workers report.
        over = RunOver(code=outcome.code, why=outcome.why, traceback=outcome.traceback, lost=outcome.lost)
        return EndAgent(over, is_outcome=True)
    if agent.is_new and quiet_s > LONGEST_SILENCE_S:
        why = f"no coordinator of the run has answered for {quiet_s:.0f} s"
        return EndAgent(RunOver(code=ExitCode.FAILED, why=why), is_outcome=False)
    if agent.has_failed and quiet_s > LONGEST_FAILURE_S:
        why = (
            f"coordinators keep dying on this machine, and none of another machine has answered for "
            f"{quiet_s:.0f} s"
        )
        return EndAgent(RunOver(code=ExitCode.FAILED, why=why), is_outcome=False)
    return None
