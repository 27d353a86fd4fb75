"""The workers to go on without when connections between living workers break.

A connection between two workers breaks for good, so one of the two must go. A dead process, a worker that no
other one can reach, and a network that has fallen into parts look alike in the first report. So
`exclude_unreachable` waits shortly for the others, unless they could not change the choice.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import TypeAlias

from elastane.run.coordinator.claiming import record_postponement
from elastane.run.coordinator.deaths import exclude_worker, format_worker_list
from elastane.run.coordinator.hearing import awaits_list, awaits_signs
from elastane.run.coordinator.roster import Roster, list_node_workers
from elastane.run.coordinator.turn import Turn
from elastane.run.nouns.control import PeerLost
from elastane.run.nouns.membership import WorkerId

REPORTS_S = 0.25
"""How long the coordinator waits for more reports after one of a broken connection.

Workers report that at once, so it does not depend on how often they report that they live.
"""

Pair: TypeAlias = tuple[WorkerId, WorkerId]


@dataclass(frozen=True, slots=True)
class Evidence:
    """The facts about the workers between which connections have broken.

    Args:
        reports: the reports, each by the worker that lost the connection and the peer that it lost.
        members: the living workers that the run needs.
        newcomers: the members that have not begun to work; they hold nothing that the others lack.
        holders: the members that are known to hold state.
        quiet: the members that the coordinator does not hear either; they are probably dead.
    """

    reports: frozenset[Pair]
    members: frozenset[WorkerId]
    newcomers: frozenset[WorkerId] = frozenset()
    holders: frozenset[WorkerId] = frozenset()
    quiet: frozenset[WorkerId] = frozenset()


def choose_excluded(evidence: Evidence) -> frozenset[WorkerId]:
    """Return the workers to go on without, so that no connection between the others is broken.

    Quiet workers go first, and of these the ones that have reported nothing. Then they are as few as can be
    found fast: the only peer that another worker has lost, then the worker with the most broken connections.
    That leaves the largest part of a network that has fallen into parts. No member goes for a newcomer. If no
    holder of state would stay, holders go last.
    """
    excluded = _exclude_most_broken(evidence, spared=frozenset())
    audible = evidence.holders - evidence.quiet
    if audible and evidence.holders <= excluded:
        return _exclude_most_broken(evidence, spared=audible)
    return excluded


def _exclude_most_broken(evidence: Evidence, spared: frozenset[WorkerId]) -> frozenset[WorkerId]:
    speakers = {worker for worker, _ in evidence.reports}
    excluded: set[WorkerId] = set()
    while broken := {frozenset(pair) for pair in evidence.reports if excluded.isdisjoint(pair)}:
        # First between members, then of newcomers with members, then between newcomers.
        newcomers = min(len(pair & evidence.newcomers) for pair in broken)
        weighed = {pair for pair in broken if len(pair & evidence.newcomers) == newcomers}
        counts, all_counts = _count_breaks(weighed), _count_breaks(broken)
        # Excluding the worker that has lost only this peer would explain no more than excluding the peer.
        only_peers = {
            peer for pair in weighed for peer in pair if any(counts[other] == 1 for other in pair - {peer})
        }
        candidates = counts.keys() & evidence.newcomers if newcomers else counts.keys()
        excluded.add(
            max(
                candidates,
                key=lambda worker: (
                    worker not in spared,
                    worker in evidence.quiet,
                    # One that has reported since this coordinator began is not dead for as long.
                    worker in evidence.quiet and worker not in speakers,
                    worker in only_peers,
                    counts[worker],
                    # A dead worker reports nothing.
                    worker not in speakers,
                    all_counts[worker],
                    worker not in evidence.holders,
                    worker,
                ),
            )
        )
    return frozenset(excluded)


def _count_breaks(broken: Iterable[frozenset[WorkerId]]) -> Counter[WorkerId]:
    return Counter(worker for pair in broken for worker in pair)


def is_certain(evidence: Evidence, excluded: frozenset[WorkerId]) -> bool:
    """Return whether every worker that stays has lost all of those that go: more reports change nothing."""
    staying = evidence.members - excluded
    return all((worker, lost) in evidence.reports for worker in staying for lost in excluded)


def receive_peer_lost(turn: Turn, lost: PeerLost) -> None:
    """Remember a broken connection between two workers that are not known to be gone."""
    ends = turn.roster.ends
    pair = lost.worker, lost.peer
    if lost.worker == lost.peer or pair in ends.breaks or any(map(turn.roster.is_gone, pair)):
        return
    turn.roster = replace(turn.roster, ends=replace(ends, breaks={**ends.breaks, pair: turn.now}))


def exclude_unreachable(turn: Turn) -> None:
    """Exclude workers until no connection between the needed ones is broken, once the choice is certain."""
    breaks = _find_breaks(turn.roster)
    if not breaks:
        return
    record_postponement(turn, "workers have lost connections to each other")
    if awaits_list(turn.roster, turn.now) or awaits_signs(turn.roster, turn.now):
        return
    evidence = _gather_evidence(turn.roster, breaks, turn.now)
    excluded = choose_excluded(evidence)
    first_s = min(breaks.values())
    # Each further report may be the first of several.
    if turn.now - max(breaks.values()) < REPORTS_S and not is_certain(evidence, excluded):
        return
    if _awaits_sign(turn.roster, evidence, excluded, breaks, turn.now):
        return
    for worker in sorted(excluded):
        exclude_worker(turn, worker, _describe_breaks(worker, evidence.reports), since=first_s)


def _awaits_sign(
    roster: Roster,
    evidence: Evidence,
    excluded: frozenset[WorkerId],
    breaks: Mapping[Pair, float],
    now: float,
) -> bool:
    """Return whether the next report may change the choice. A worker that sends none is quiet soon.

    - A worker that would stay has missed a report. If it is dead, it goes instead of those that have lost it.
    - On several machines, a worker that would go may be heard soon: see `_may_be_heard`.
    """
    lost_s: dict[WorkerId, float] = {}
    for (_, peer), time in breaks.items():
        lost_s[peer] = min(time, lost_s.get(peer, time))
    speakers = {worker for worker, _ in evidence.reports}
    for worker in lost_s.keys() - speakers:
        heard_s = roster.heard.get(worker, roster.term.began)
        if worker in excluded:
            awaits = roster.spec.listen and _may_be_heard(roster, worker, lost_s[worker], now)
        else:
            awaits = worker not in evidence.quiet and now - heard_s >= roster.spec.silence.late_s
        if awaits:
            return True
    return False


def _may_be_heard(roster: Roster, worker: WorkerId, lost_s: float, now: float) -> bool:
    """Return whether a worker that its peers have lost, or its agent, may be heard soon.

    - Neither has sent anything since then, or what they sent is late: it may have been on its way when the
      network broke. Perhaps this coordinator is cut off with the smaller part of the run.
    - The worker has lost its connection to the coordinator too, but its agent says that it lives. It may
      connect again.
    """
    heard_s, silence = roster.heard.get(worker, roster.term.began), roster.spec.silence
    reports = roster.nodes.reports.values()
    named = (roster.nodes.heard[report.node] for report in reports if worker in list_node_workers(report))
    named_s = max(named, default=0.0)
    if worker in roster.connected:
        sign_s = max(heard_s, named_s)
        return (sign_s <= lost_s or now - sign_s >= silence.late_s) and now - sign_s < silence.quiet_s
    return named_s > lost_s and now - heard_s < silence.quiet_s


def _find_breaks(roster: Roster) -> Mapping[Pair, float]:
    """Return the reports of broken connections between living workers that the run needs, by time."""
    if not roster.ends.breaks or roster.finishing is not None:
        return {}
    needed = frozenset(roster.list_living(roster.needed))
    return {pair: time for pair, time in roster.ends.breaks.items() if needed.issuperset(pair)}


def _gather_evidence(roster: Roster, breaks: Mapping[Pair, float], now: float) -> Evidence:
    needed = roster.list_living(roster.needed)
    return Evidence(
        reports=frozenset(breaks),
        members=frozenset(needed),
        newcomers=frozenset(worker for worker in needed if _is_newcomer(roster, worker)),
        holders=frozenset(worker for worker in needed if roster.holds_state(worker)),
        quiet=frozenset(worker for worker in needed if _is_quiet(roster, worker, now)),
    )


def _is_newcomer(roster: Roster, worker: WorkerId) -> bool:
    """Return whether a worker has not begun to work, as far as known.

    Once another member has begun, so has this one, unless it has shown since that it has not: its first
    report as a member may be late. A later report shows that. So does a broken connection to a member: a
    worker reports it after its first report as a member, and cannot begin without the peer that it has lost.
    """
    newest, known = roster.newest, roster.known
    if worker in roster.joined:
        return False
    if newest is None or worker not in newest or known.begun < newest.number:
        return True
    has_lost_member = any((worker, member) in roster.ends.breaks for member in newest.workers)
    return has_lost_member or roster.heard.get(worker, 0.0) > known.begun_s


def _is_quiet(roster: Roster, worker: WorkerId, now: float) -> bool:
    heard_s = roster.heard.get(worker, roster.term.began)
    return worker not in roster.connected or now - heard_s >= roster.spec.silence.quiet_s


def _describe_breaks(worker: WorkerId, reports: Iterable[Pair]) -> str:
    """Describe which workers lost the connection to a worker, or which it lost itself."""
    if by := sorted(other for other, lost in reports if lost == worker):
        what = "its connection" if len(by) == 1 else "their connections"
        return f"{format_worker_list(by)} lost {what} to it"
    peers = sorted(lost for other, lost in reports if other == worker)
    return f"it lost its connection to {format_worker_list(peers)}"
