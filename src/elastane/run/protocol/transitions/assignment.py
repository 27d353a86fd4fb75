"""The assignment of a round's virtual ranks to this worker, and the start of their computation."""

from elastane.run.nouns.sites import list_site_ranks
from elastane.run.protocol.absence import choose_left_out
from elastane.run.protocol.actions import BeginRound, Compute
from elastane.run.protocol.shares import assign_ranks
from elastane.run.protocol.spot_checks import choose_spot_check, move_spot_check
from elastane.run.protocol.transitions.state import MemberState, RoundPhase
from elastane.run.protocol.transitions.sums import pass_on_sums
from elastane.run.protocol.transitions.transfer import fetch_more
from elastane.run.protocol.transitions.votes import find_computable, request_recomputation


def assign_round(me: MemberState) -> None:
    """Assign the virtual ranks of the round: all or, if some are assigned already, the missing ones."""
    round_, generation = me.round, me.generation
    if not (me.begun and round_.entered and generation) or round_.phase > RoundPhase.WAITING:
        return
    if me.next is not None and round_.entered.kind == "train":
        # This step belongs to the generation that all votes agreed on.
        return
    if me.cannot_commit or me.worker not in generation:
        return
    if not leave_out_sites(me):
        return
    round_.phase = RoundPhase.ASSIGNED
    size = round_.entered.size
    speeds = {member.worker: member.speed for member in generation.members}
    assigned, known = dict[int, frozenset[int]](), frozenset[int]()
    rooted = frozenset[int]().union(*me.rooted_at.values()) if round_.resumed else frozenset[int]()
    if round_.resumed and (any(me.assigned_at.values()) or me.known_at):
        blocks = me.layout.blocks if round_.entered.kind == "train" else 0
        # If all whole sums exist, no worker needs to recompute the virtual ranks of a dead worker.
        assigned, known = me.assigned_at, me.known_at if len(rooted) >= blocks else frozenset[int]()
    computable = find_computable(me)
    ranks = assign_ranks(size, speeds, me.nodes, assigned, known, me.layout.together, computable)
    round_.lacks_site = len(known.union(*ranks.values())) < size
    if rooted and (check := round_.spot_check) is not None:
        # If a worker that has died computed its virtual rank, whole sums may have that result.
        kept = known.union(*assigned.values())
        round_.unchecked = round_.unchecked or check.virtual_rank not in kept
    # A virtual rank that is left out has no result to compare, and its site's data is elsewhere.
    checkable = computable and {worker: some - round_.left_out for worker, some in computable.items()}
    if any(assigned.values()) or known:
        round_.spot_check = move_spot_check(round_.spot_check, ranks, checkable)
    elif round_.entered.kind == "train" and me.layout.compared:
        rule, before = me.layout.spot_checks, me.step - me.generation_step
        round_.spot_check = choose_spot_check(rule, me.step + 1, ranks, me.newcomers, before, checkable)
    round_.node_ranks = sum(len(ranks[w]) for w, node in me.nodes.items() if node == me.nodes[me.worker])
    new = tuple(sorted(ranks[me.worker] - round_.assigned))
    if new:
        round_.assigned.update(new)
        round_.to_compute += new
        round_.clear_final()
        me.assignment += 1
    if round_.resumed:
        pass_on_sums(me)
    fetch_more(me)


def leave_out_sites(me: MemberState) -> bool:
    """Choose the virtual ranks of absent sites that the round leaves out; return False if it is void."""
    round_, generation, layout = me.round, me.generation, me.layout
    if not layout.rank_sites or generation is None or round_.entered is None or round_.is_void:
        return not round_.is_void
    sites = {*generation.absent, *layout.find_replayed(me.step + 1)}
    absent = list_site_ranks(layout.rank_sites, sites if round_.entered.kind == "train" else ())
    rooted = frozenset[int]().union(*me.rooted_at.values()) if round_.resumed else frozenset[int]()
    left_out = choose_left_out(
        absent,
        round_.left_out_before,
        me.known_at if round_.resumed else (),
        is_summed=len(rooted) >= layout.blocks,
        is_begun=bool(rooted),
    )
    if left_out is None:
        round_.is_void = True
        return False
    # Results of a site that is absent now do not count.
    for rank in left_out - round_.left_out_before:
        round_.leaves.pop(rank, None)
    me.known_at -= left_out - round_.left_out_before
    round_.left_out = left_out
    return True


def start_computing(me: MemberState) -> None:
    """Start to compute when all values are those of the last committed round."""
    round_, generation = me.round, me.generation
    if round_.phase < RoundPhase.ASSIGNED or generation is None or me.behind or not me.applied:
        return
    if round_.phase < RoundPhase.COMPUTING:
        round_.phase = RoundPhase.COMPUTING
        workers = len(generation.members)
        begin = BeginRound(me.committed + 1, me.step + 1, generation.number, workers, me.cursors)
        me.actions.append(begin)
    check = round_.spot_check
    if round_.to_compute:
        checked = check.virtual_rank if check is not None else None
        me.actions.append(Compute(round_.to_compute, me.assignment, checked, round_.left_out))
        round_.to_compute = ()
    if check is not None and check.worker == me.worker and not round_.requested:
        request_recomputation(me, check.virtual_rank)
