"""Generations: a member adopts a proposal, begins it with the statuses of all members, and may leave."""

from collections.abc import Collection, Mapping

import msgspec

from elastane.run.nouns.membership import Generation
from elastane.run.protocol import messages
from elastane.run.protocol.actions import EndProcess, FailLostState, LeaveTraining, Send
from elastane.run.protocol.layout import FRESH
from elastane.run.protocol.roles import add_origin, add_store, assign_roles, find_rooted_blocks
from elastane.run.protocol.spot_checks import is_disputed
from elastane.run.protocol.transitions.inbox import retry_early_messages
from elastane.run.protocol.transitions.reads import discard_reads
from elastane.run.protocol.transitions.state import MemberState, list_awaited_workers
from elastane.run.protocol.transitions.transfer import fetch_state
from elastane.run.protocol.transitions.votes import conclude_round, find_ready_generation, void_round
from elastane.run.protocol.tree import expand_spans, find_spans


def receive_proposal(me: MemberState, generation: Generation) -> None:
    newest = me.newest
    if newest is not None and (generation.number <= newest.number or generation.term < newest.term):
        return
    me.newest = generation
    leaving = any(leaver.worker == me.worker for leaver in generation.leaving)
    if me.left and not leaving:
        return
    if me.committed == FRESH and me.worker not in generation:
        if leaving:
            # The coordinator believes that this worker holds state; the others wait for its status.
            send_status(me, generation)
        return
    if generation.planned and me.committed != FRESH and not me.left:
        # Keep older planned generations: a vote may already have promised one of them.
        me.planned[generation.number] = generation
        return
    adopt_generation(me, generation)


def switch_generation(me: MemberState) -> None:
    """Switch to the agreed planned generation at the next training step, after the last one is complete."""
    entered = me.round.entered
    if me.next is None or entered is None or entered.kind != "train":
        return
    if me.applied and (me.layout.copies is None or not me.behind):
        adopt_generation(me, me.next)


def leave_waiting_round(me: MemberState) -> None:
    """Begin a planned generation in a round that waits for a site: no member can vote for the round.

    Otherwise the workers of that site, which join with the generation, would wait for the round's end.
    """
    if me.round.lacks_site and me.next is None and (number := find_ready_generation(me)):
        adopt_generation(me, me.planned[number])
    elif me.layout.rank_sites and me.generation is not None and not me.begun:
        # Without the vote of this worker its peers have committed nothing. So they have left a waiting round,
        # and the statuses that this worker lacks never come.
        for number in sorted(me.planned, reverse=True):
            if any(peer in me.generation for peer in me.statuses.get(number, {}) if peer != me.worker):
                adopt_generation(me, me.planned[number])
                return


def adopt_generation(me: MemberState, generation: Generation) -> None:
    """Enter a generation; unfinished work of the older one is void."""
    me.generation = generation
    me.next = None
    me.planned = {n: planned for n, planned in me.planned.items() if n > generation.number}
    me.begun = me.cannot_commit = me.current_announced = False
    me.current.clear()
    me.wanted_values.clear()
    me.wanted_states.clear()
    me.open_fetches.clear()
    # The workers that differ from each other may not meet again: whole sums may have the wrong result.
    me.round.unchecked = me.round.unchecked or is_disputed(me.round.leaves, me.round.votes)
    me.round.restart()
    me.statuses = {n: s for n, s in me.statuses.items() if n >= generation.number}
    if me.first_generation == 0:
        me.first_generation = generation.number
    me.status_due = me.is_awaited_in(generation)
    if me.status_due:
        send_due_status(me)
    else:
        # The others go on without its status.
        discard_reads(me, generation.number)
        leave_training(me)
    if me.worker not in generation and not generation.planned:
        # The others repeat this round without this worker, so it cannot be a member any more.
        me.left = True
    retry_early_messages(me)


def leave_training(me: MemberState) -> None:
    me.left = True
    if not me.leave_announced:
        me.leave_announced = True
        me.voted_for = 0
        me.actions.append(LeaveTraining())


def send_due_status(me: MemberState) -> None:
    """Send the status of this worker in its generation, after its reads of the memory of peers have ended."""
    if not me.status_due or me.reads or me.generation is None:
        return
    me.status_due = False
    discard_reads(me, me.generation.number)
    send_status(me, me.generation)


def send_status(me: MemberState, generation: Generation) -> None:
    round_ = me.round
    fresh = me.committed == FRESH
    status = messages.Status(
        generation=generation.number,
        worker=me.worker,
        committed=me.committed,
        outcome=me.outcome,
        assigned=() if fresh else find_spans(round_.assigned),
        leaves=() if fresh else tuple(round_.leaves.values()),
        spot_check=None if fresh else round_.spot_check,
        rooted=() if fresh else find_spans(round_.rooted),
        held=find_spans(me.held),
        keeps=find_spans(me.held & me.find_units_to_hold()) if me.has_voted_for(me.committed + 1) else (),
        behind=find_spans(me.behind),
        released=me.released,
        left_out=() if fresh else find_spans(round_.left_out),
    )
    me.statuses.setdefault(generation.number, {})[me.worker] = status
    peers = list_awaited_workers(generation)
    me.actions.extend(Send(peer, status) for peer in peers if peer != me.worker)


def begin_generation(me: MemberState) -> None:
    """Begin when all statuses are here: then all members know the same round, sums and transfers."""
    generation = me.generation
    if generation is None or me.begun or not me.is_awaited_in(generation):
        return
    received = me.statuses.get(generation.number, {})
    awaited = list_awaited_workers(generation)
    if any(worker not in received for worker in awaited):
        return
    statuses = {worker: received[worker] for worker in awaited}
    me.newcomers = frozenset(w for w in generation.workers if received[w].committed == FRESH)
    newest, outcome = find_newest_round(statuses)
    if newest > (outcome.round if outcome is not None else 0):
        # The newest round was void.
        statuses = {worker: pass_void_round(status, newest) for worker, status in statuses.items()}
        if me.committed == newest - 1:
            void_round(me)
    if me.origin is None:
        statuses = add_origin(me.layout, generation.workers, statuses)
    else:
        statuses = add_store(me.layout, me.origin, statuses)
    newest, outcome = find_newest_round(statuses)
    if me.committed == FRESH:
        me.committed, me.outcome = newest, outcome
    elif outcome is not None and is_left_behind(me, statuses, outcome):
        me.cannot_commit = True
        me.actions.append(EndProcess())
        return
    elif me.committed < newest and outcome is not None and can_catch_up(me, generation):
        conclude_round(me, outcome)
        # Members fetch the new values that they need, as this generation's owners may not have them yet.
        me.committed_in = 0
    mine = statuses[me.worker]
    if mine.committed == newest:
        me.held, me.behind = set(expand_spans(mine.held)), set(expand_spans(mine.behind))
    if me.worker in generation:
        resume_round(me, generation, statuses, newest)
    else:
        leave_training(me)
    me.generation_step = me.step
    me.begun = True
    retry_early_messages(me)


def find_newest_round(statuses: dict[int, messages.Status]) -> tuple[int, messages.RoundOutcome | None]:
    """Return the number of the newest round, and the outcome of the newest one that was not void."""
    newest = max(status.committed for status in statuses.values())
    return newest, next(status.outcome for status in statuses.values() if status.committed == newest)


def pass_void_round(status: messages.Status, round_: int) -> messages.Status:
    """Return the status after a void round, which has changed nothing and leaves no work behind."""
    if status.committed != round_ - 1:
        return status
    return msgspec.structs.replace(
        status, committed=round_, assigned=(), leaves=(), spot_check=None, rooted=(), left_out=()
    )


def is_left_behind(
    me: MemberState, statuses: dict[int, messages.Status], newest: messages.RoundOutcome
) -> bool:
    """Return whether the others committed a step without this worker and released their scripts.

    Then the values that this worker needs no longer exist.
    """
    if newest.step <= me.step or me.has_voted_for(newest.round) or me.generation is None:
        return False
    has_released = any(status.committed == newest.round and status.released for status in statuses.values())
    return has_released and me.worker in me.generation


def can_catch_up(me: MemberState, generation: Generation) -> bool:
    # A leaver does not catch up with the others, unless it is a member again.
    return me.worker in generation or me.has_voted_for(me.committed + 1)


def resume_round(
    me: MemberState, generation: Generation, statuses: dict[int, messages.Status], newest: int
) -> None:
    """Resume the round after ``newest``, from the work that all members together have done for it."""
    round_ = me.round
    round_.resumed = True
    current = {w: statuses[w] for w in generation.workers if statuses[w].committed == newest}
    me.assigned_at = {worker: expand_spans(status.assigned) for worker, status in current.items()}
    me.released_at = {worker for worker, status in current.items() if status.released}
    me.released_at |= {w for w in generation.workers if statuses[w].committed == FRESH}
    me.rooted_at = {worker: find_rooted_blocks(status, newest) for worker, status in current.items()}
    known = {leaf.virtual_rank: leaf for status in current.values() for leaf in status.leaves}
    # Two members may know one virtual rank from different workers; all must choose the same worker.
    own = {rank: leaf for rank, leaf in round_.leaves.items() if leaf.worker == me.worker}
    round_.leaves = {**known, **own}
    me.known_at = frozenset(known)
    round_.left_out_before = frozenset[int]().union(*(expand_spans(s.left_out) for s in current.values()))
    # Those that had not begun the round learn of its check, and all go on with the same one.
    checks = (current[worker].spot_check for worker in sorted(current))
    round_.spot_check = next(filter(None, checks), None)
    roles = assign_roles(me.layout, generation, statuses)
    me.roles = roles
    if roles.lost:
        me.cannot_commit = True
        me.actions.append(FailLostState(roles.lost))
        return
    # The roles take all values of a worker that is a round late for old ones. After an evaluation they are
    # not, and perhaps this worker computes with them while it waits for the answers.
    values = _keep_units(roles.values.get(me.worker, {}), me.behind)
    fetch_state(me, values, _keep_units(roles.states.get(me.worker, {}), set(me.layout.everything) - me.held))


def _keep_units(by_peer: Mapping[int, tuple[int, ...]], kept: Collection[int]) -> dict[int, tuple[int, ...]]:
    """Return the units to fetch from each peer, without others."""
    found = {peer: tuple(unit for unit in units if unit in kept) for peer, units in by_peer.items()}
    return {peer: units for peer, units in found.items() if units}
