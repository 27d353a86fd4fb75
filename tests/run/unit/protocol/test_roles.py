"""The roles of members follow from their statuses alone."""

import msgspec

from elastane.run.nouns.membership import Generation, Member
from elastane.run.protocol.layout import FRESH, Layout
from elastane.run.protocol.messages import BEGINNING, Status
from elastane.run.protocol.roles import add_origin, assign_roles
from elastane.run.protocol.tree import find_spans

EVERYTHING = Layout(virtual_ranks=4, blocks=2, units=4, unit_bytes=(1,) * 4)
SHARDED = Layout(virtual_ranks=4, blocks=3, units=4, unit_bytes=(1,) * 4, copies=2)


def make_members(*workers):
    return tuple(Member(worker, "127.0.0.1", 1000 + worker) for worker in workers)


def make_generation(*workers, leaving=()):
    return Generation(7, 1, make_members(*workers), planned=True, leaving=make_members(*leaving))


def make_status(worker, *, committed=5, held=(), keeps=None, behind=(), rooted=()):
    outcome = None if committed <= 0 else msgspec.structs.replace(BEGINNING, round=committed, step=committed)
    return Status(
        generation=7,
        worker=worker,
        committed=committed,
        outcome=outcome,
        held=find_spans(held),
        keeps=find_spans(held if keeps is None else keeps),
        behind=find_spans(behind),
        rooted=find_spans(rooted),
    )


def make_fresh_status(worker, units=4):
    return make_status(worker, committed=FRESH, behind=range(units))


def map_by_worker(*statuses):
    return {status.worker: status for status in statuses}


def test_with_whole_copies_a_joiner_receives_all_values_at_once_but_no_optimizer_state():
    roles = assign_roles(
        EVERYTHING, make_generation(0, 1), map_by_worker(make_status(0, held=range(4)), make_fresh_status(1))
    )
    assert roles.values == {1: {0: (0, 1, 2, 3)}}
    assert roles.states == {}
    assert roles.auditors == (0, 0)


def test_without_a_complete_member_the_first_completes_its_state_at_once():
    statuses = map_by_worker(make_status(1, held=(0, 1, 3)), make_status(2, held=(1, 2)))
    roles = assign_roles(EVERYTHING, make_generation(1, 2), statuses)
    assert roles.states == {1: {2: (2,)}}
    assert roles.donors[1] == {0, 1, 2, 3}
    assert not roles.lost


def test_state_that_only_a_leaver_holds_is_fetched_from_it():
    statuses = map_by_worker(make_status(0, held=(0,)), make_status(1, held=(1,)), make_status(2, held=(2,)))
    roles = assign_roles(
        msgspec.structs.replace(SHARDED, copies=1), make_generation(0, 1, leaving=(2,)), statuses
    )
    assert [sender for by_sender in roles.states.values() for sender in by_sender] == [2]
    assert not roles.lost


def test_a_worker_that_is_a_round_late_counts_with_the_units_that_it_keeps():
    statuses = map_by_worker(
        make_status(0, held=(0, 1)),
        make_status(1, committed=4, held=(0, 1, 2), keeps=(1, 2)),
        make_status(2, held=(0, 2)),
    )
    roles = assign_roles(SHARDED, make_generation(0, 1, 2), statuses)
    assert not any(1 in by_sender for by_sender in roles.states.get(0, {}).values())
    holders = roles.holders[0]
    assert 1 not in holders or 0 in [unit for some in roles.states[1].values() for unit in some]


def test_a_leaver_of_an_earlier_round_sends_no_state():
    statuses = map_by_worker(
        make_status(0, held=(0, 1, 2)), make_status(3, committed=4, held=(0, 1, 2), keeps=())
    )
    roles = assign_roles(SHARDED, make_generation(0, leaving=(3,)), statuses)
    assert roles.values == {}
    assert roles.states == {}


def test_a_worker_with_a_whole_sum_owns_the_block_in_the_first_round_only():
    statuses = map_by_worker(
        make_status(0, held=(0, 1), rooted=(2,)), make_status(1, held=(0, 2)), make_status(2, held=(1, 2))
    )
    roles = assign_roles(SHARDED, make_generation(0, 1, 2), statuses)
    assert roles.first_owners[2] == 0
    assert roles.owners[2] == roles.holders[2][0] != 0


def test_units_without_a_holder_are_lost():
    roles = assign_roles(
        SHARDED, make_generation(0, 1), map_by_worker(make_status(0, held=(0,)), make_status(1, held=(2,)))
    )
    assert roles.lost == (1,)


def test_a_block_without_values_is_lost():
    # Worker 1 joined and had received the state of all blocks, but no values yet, when all others died.
    roles = assign_roles(
        SHARDED, make_generation(1), map_by_worker(make_status(1, held=range(4), behind=(0, 1)))
    )
    assert roles.lost == (0, 1)


def test_a_run_begins_with_the_state_of_its_first_member():
    statuses = add_origin(SHARDED, (4, 2), map_by_worker(make_fresh_status(4), make_fresh_status(2)))
    assert (statuses[4].committed, statuses[4].behind) == (0, ())
    assert statuses[2].committed == FRESH


def test_before_the_first_commit_a_member_with_all_values_replaces_a_lost_origin():
    statuses = map_by_worker(make_fresh_status(1), make_status(2, committed=0, held=(1,)))
    begun = add_origin(SHARDED, (1, 2), statuses)
    assert begun[2].held == ((0, 4),)
    assert assign_roles(SHARDED, make_generation(1, 2), begun).lost == ()


def test_after_a_void_round_too_the_state_of_one_member_is_that_of_the_beginning():
    void = msgspec.structs.replace(make_status(2, held=(1,)), outcome=None)
    begun = add_origin(SHARDED, (1, 2), map_by_worker(make_fresh_status(1), void))
    assert (begun[2].committed, begun[2].held) == (5, ((0, 4),))
    assert assign_roles(SHARDED, make_generation(1, 2), begun).lost == ()


def test_after_a_commit_the_origin_is_not_replaced():
    statuses = map_by_worker(make_fresh_status(1), make_status(2, committed=3, held=(1,)))
    assert add_origin(SHARDED, (1, 2), statuses) == statuses


def test_at_the_start_all_members_complete_their_state_at_once():
    statuses = add_origin(
        EVERYTHING, (0, 1, 2), map_by_worker(make_fresh_status(0), make_fresh_status(1), make_fresh_status(2))
    )
    roles = assign_roles(EVERYTHING, make_generation(0, 1, 2), statuses)
    assert roles.states == {1: {0: (0, 1, 2)}, 2: {0: (0, 1, 2)}}
    assert all(donor == {0, 1, 2, 3} for donor in roles.donors.values())
