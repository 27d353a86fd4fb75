"""Who does what follows from the statuses alone."""

import msgspec

from elastane.api.membership import Generation, Member
from elastane.protocol.layout import FRESH, Layout
from elastane.protocol.messages import Status
from elastane.protocol.roles import add_origin, assign_roles
from elastane.protocol.tree import find_spans

EVERYTHING = Layout(virtual_ranks=4, blocks=2, units=4, unit_bytes=(1,) * 4)
SHARDED = Layout(virtual_ranks=4, blocks=3, units=4, unit_bytes=(1,) * 4, copies=2)


def members(*workers):
    return tuple(Member(worker, "127.0.0.1", 1000 + worker) for worker in workers)


def generation(*workers, leaving=()):
    return Generation(7, 1, members(*workers), planned=True, leaving=members(*leaving))


def status(worker, *, committed=5, held=(), keeps=None, behind=(), rooted=()):
    return Status(
        generation=7,
        worker=worker,
        committed=committed,
        held=find_spans(held),
        keeps=find_spans(held if keeps is None else keeps),
        behind=find_spans(behind),
        rooted=find_spans(rooted),
    )


def fresh(worker, units=4):
    return status(worker, committed=FRESH, behind=range(units))


def by_worker(*statuses):
    return {one.worker: one for one in statuses}


def test_a_joiner_receives_all_values_at_once_but_no_optimizer_state_where_all_keep_everything():
    roles = assign_roles(EVERYTHING, generation(0, 1), by_worker(status(0, held=range(4)), fresh(1)))
    assert roles.values == {1: {0: (0, 1, 2, 3)}}
    assert roles.states == {}
    assert roles.auditors == (0, 0)


def test_without_a_whole_member_the_first_becomes_one_at_once():
    here = by_worker(status(1, held=(0, 1, 3)), status(2, held=(1, 2)))
    roles = assign_roles(EVERYTHING, generation(1, 2), here)
    assert roles.states == {1: {2: (2,)}}
    assert roles.donors[1] == {0, 1, 2, 3}
    assert not roles.lost


def test_what_only_a_leaver_holds_is_fetched_from_it():
    here = by_worker(status(0, held=(0,)), status(1, held=(1,)), status(2, held=(2,)))
    roles = assign_roles(msgspec.structs.replace(SHARDED, copies=1), generation(0, 1, leaving=(2,)), here)
    assert [sender for by_sender in roles.states.values() for sender in by_sender] == [2]
    assert not roles.lost


def test_who_is_a_round_late_counts_with_what_it_keeps_not_with_what_it_holds():
    here = by_worker(
        status(0, held=(0, 1)),
        status(1, committed=4, held=(0, 1, 2), keeps=(1, 2)),
        status(2, held=(0, 2)),
    )
    roles = assign_roles(SHARDED, generation(0, 1, 2), here)
    assert not any(1 in by_sender for by_sender in roles.states.get(0, {}).values())
    holders = roles.holders[0]
    assert 1 not in holders or 0 in [unit for some in roles.states[1].values() for unit in some]


def test_a_leaver_that_left_before_the_last_round_is_no_source():
    here = by_worker(status(0, held=(0, 1, 2)), status(3, committed=4, held=(0, 1, 2), keeps=()))
    roles = assign_roles(SHARDED, generation(0, leaving=(3,)), here)
    assert roles.values == {}
    assert roles.states == {}


def test_whoever_has_a_whole_sum_gives_it_in_the_first_round_only():
    here = by_worker(status(0, held=(0, 1), rooted=(2,)), status(1, held=(0, 2)), status(2, held=(1, 2)))
    roles = assign_roles(SHARDED, generation(0, 1, 2), here)
    assert roles.first_owners[2] == 0
    assert roles.owners[2] == roles.holders[2][0] != 0


def test_units_that_nobody_holds_are_lost():
    roles = assign_roles(SHARDED, generation(0, 1), by_worker(status(0, held=(0,)), status(1, held=(2,))))
    assert roles.lost == (1,)


def test_a_block_whose_optimizer_state_outlived_its_values_is_lost():
    # Worker 1 joined and had received the state of all blocks, but no values yet, when all others died.
    roles = assign_roles(SHARDED, generation(1), by_worker(status(1, held=range(4), behind=(0, 1))))
    assert roles.lost == (0, 1)


def test_a_run_begins_with_the_state_of_its_first_member():
    here = add_origin(SHARDED, (4, 2), by_worker(fresh(4), fresh(2)))
    assert (here[4].committed, here[4].behind) == (0, ())
    assert here[2].committed == FRESH


def test_before_the_first_commit_a_lost_beginning_begins_anew_with_who_has_all_values():
    here = by_worker(fresh(1), status(2, committed=0, held=(1,)))
    begun = add_origin(SHARDED, (1, 2), here)
    assert begun[2].held == ((0, 4),)
    assert assign_roles(SHARDED, generation(1, 2), begun).lost == ()


def test_after_a_commit_nothing_begins_anew():
    here = by_worker(fresh(1), status(2, committed=3, held=(1,)))
    assert add_origin(SHARDED, (1, 2), here) == here


def test_at_the_beginning_all_members_become_whole_at_once():
    here = add_origin(EVERYTHING, (0, 1, 2), by_worker(fresh(0), fresh(1), fresh(2)))
    roles = assign_roles(EVERYTHING, generation(0, 1, 2), here)
    assert roles.states == {1: {0: (0, 1, 2)}, 2: {0: (0, 1, 2)}}
    assert all(donor == {0, 1, 2, 3} for donor in roles.donors.values())
