"""The workers and nodes that a coordinator hears, and whether it may be cut off itself.

Silence has two causes: the others are dead, or the network has parted this coordinator from them. So it waits
where the larger part of the run may go on without it, and where nothing can be decided anyway.
"""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from math import inf

from elastane.run.coordinator.roster import Roster, find_worker_node, list_node_workers
from elastane.run.coordinator.turn import Turn
from elastane.run.nouns.control import AgentReport
from elastane.run.nouns.membership import WorkerId


def find_sign(roster: Roster, report: AgentReport) -> float:
    """Return the time of the last sign of a node.

    While its agent is silent, a step that commits with votes of its workers shows that it is at work. Only
    then: the last steps before a death are often later than the last report.
    """
    heard_s = roster.nodes.heard[report.node]
    committed = roster.progress.committed
    voted_s = max((committed.get(worker, 0.0) for worker in list_node_workers(report)), default=0.0)
    return voted_s if voted_s - heard_s >= roster.spec.silence.quiet_s else heard_s


def find_vote(roster: Roster, worker: WorkerId) -> float:
    """Return when a step with a worker's vote was reported; -inf: not long after its own last report."""
    voted_s = roster.progress.committed.get(worker, -inf)
    heard_s = roster.heard.get(worker, roster.term.began)
    return voted_s if voted_s - heard_s >= roster.spec.silence.quiet_s else -inf


def list_unplaced(roster: Roster, workers: Iterable[WorkerId], now: float) -> tuple[WorkerId, ...]:
    """Return the living ones among workers of which neither an agent nor they themselves report anything."""
    placed = {worker for report in roster.nodes.reports.values() for worker in list_node_workers(report)}
    silence = roster.spec.silence
    return tuple(
        worker
        for worker in sorted(roster.list_living(workers))
        if worker not in placed
        and (worker not in roster.heard or now - roster.heard[worker] >= silence.quiet_s)
        and now - find_vote(roster, worker) >= silence.limit_s
    )


def awaits_signs(roster: Roster, now: float) -> bool:
    """Return whether to wait for workers that are not heard, because this coordinator may be cut off itself.

    - Most of the run's workers are not heard: the larger part of the run can claim the next term in this
      time, see `SilenceLimits.minority_s`. A tie does not wait.
    - Most are heard again, or any one is: the network heals, and the last nodes follow soon.
    - The claim list does not answer either, so the whole network may be away, and nothing could be claimed.
      Once the list answers again, the others have a moment to be heard.
    """
    if not roster.spec.listen:
        return False
    away = _find_away(roster, now)
    if away and awaits_list(roster, now):
        return True
    silence = roster.spec.silence
    if now - roster.nodes.returned_s < silence.quiet_s:
        return True
    minority_since = _find_minority(roster, away)
    if minority_since is not None:
        return now - max(minority_since, roster.claiming.back_s) < silence.limit_s + silence.minority_s
    return now - roster.nodes.minority_s < silence.quiet_s


def record_return(turn: Turn, worker: WorkerId) -> None:
    """Remember that a needed worker is heard again, or late in this term for the first time.

    Those that follow it do not count: the wait for them ends, however many there are.
    """
    roster, silence = turn.roster, turn.roster.spec.silence
    is_new = worker not in roster.heard
    silent_s = turn.now - (roster.term.began if is_new else roster.heard[worker])
    is_away = silent_s >= (silence.late_s if is_new else silence.quiet_s)
    if worker in roster.needed and is_away and turn.now - roster.nodes.returned_s >= silence.limit_s:
        turn.roster = replace(roster, nodes=replace(roster.nodes, returned_s=turn.now))


def is_in_minority(roster: Roster, now: float) -> bool:
    """Return whether most of the run's workers are not heard."""
    return _find_minority(roster, _find_away(roster, now)) is not None


def awaits_list(roster: Roster, now: float) -> bool:
    """Return whether the claim list does not answer, or has answered again only for a moment.

    Not after the last step: then the others write the state of those that are not heard, and need no claim.
    """
    is_back = now - roster.claiming.back_s >= roster.spec.silence.quiet_s
    return roster.finishing is None and (roster.claiming.is_away or not is_back)


def _find_minority(roster: Roster, away: Mapping[WorkerId, float]) -> float | None:
    """Return since when most of the run's workers have not been heard; None: at least half of them are.

    Args:
        away: the workers that are not heard, with the time of their last sign.
    """
    present = set(roster.list_living(roster.needed)) - away.keys()
    if len(present) >= len(away):
        return None
    return sorted(away.values())[(len(present) + len(away)) // 2]


def _find_away(roster: Roster, now: float) -> dict[WorkerId, float]:
    """Return the needed workers that have not ended and are not heard, with the time of their last sign."""
    signs = {worker: roster.heard[worker] for worker in roster.needed if worker in roster.heard}
    for report in roster.nodes.reports.values():
        for worker in roster.needed.intersection(list_node_workers(report)):
            signs[worker] = max(signs.get(worker, 0.0), find_sign(roster, report))
    takeover, quiet_s, away = roster.term.takeover, roster.spec.silence.quiet_s, {}
    for worker in roster.needed:
        sign_s = max(signs.get(worker, -inf), find_vote(roster, worker))
        if roster.has_ended(worker) or now - sign_s < quiet_s:
            continue
        if sign_s == -inf:
            # However new this term is, the worker is away. A node that no agent heard before the term has
            # been silent for as long.
            answered = find_worker_node(roster, worker) in takeover.answering
            sign_s = roster.term.began - (0.0 if answered else takeover.silent_s)
        away[worker] = sign_s
    return away
