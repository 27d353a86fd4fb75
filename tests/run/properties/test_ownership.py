"""The holders of blocks: evenly spread, redundant, and stable over changes."""

from collections import Counter

from hypothesis import assume, given
from hypothesis import strategies as st

from elastane.run.protocol.ownership import (
    TOLERATED_BLOCKS,
    choose_holders,
    choose_owners,
    choose_senders,
    plan_loads,
    spread_blocks,
    stripe_blocks,
)


@st.composite
def draw_situations(draw):
    workers = draw(st.lists(st.integers(0, 30), min_size=1, max_size=7, unique=True))
    blocks = draw(st.integers(1, 20))
    copies = draw(st.integers(1, 4))
    held = draw(st.dictionaries(st.sampled_from(workers), st.frozensets(st.integers(0, blocks - 1))))
    return blocks, tuple(workers), copies, held


@given(draw_situations())
def test_every_block_has_the_requested_number_of_holders(situation):
    blocks, workers, copies, held = situation
    holders = choose_holders(blocks, workers, copies, held)
    assert len(holders) == blocks
    for some in holders:
        assert len(set(some)) == len(some) == min(copies, len(workers))
        assert set(some) <= set(workers)


@given(draw_situations())
def test_fewer_deaths_than_copies_leave_a_holder(situation):
    blocks, workers, copies, held = situation
    copies = min(copies, len(workers))
    dead = set(workers[: copies - 1]) | set(workers[-(copies - 1) :] if copies > 1 else ())
    for some in choose_holders(blocks, workers, copies, held):
        killable = [worker for worker in some if worker in dead][: copies - 1]
        assert set(some) - set(killable)


@given(draw_situations())
def test_no_worker_owns_more_than_an_even_share_rounded_up(situation):
    blocks, workers, copies, held = situation
    holders = choose_holders(blocks, workers, copies, held)
    assert max(Counter(some[0] for some in holders).values()) <= -(-blocks // len(workers))


@given(draw_situations())
def test_no_worker_holds_more_than_two_blocks_beyond_an_even_share(situation):
    blocks, workers, copies, held = situation
    holders = choose_holders(blocks, workers, copies, held)
    kept = Counter(worker for some in holders for worker in some)
    assert max(kept.values()) <= -(-blocks * min(copies, len(workers)) // len(workers)) + 2


@given(draw_situations())
def test_the_same_members_move_no_block(situation):
    blocks, workers, copies, _ = situation
    before = choose_holders(blocks, workers, copies, {})
    held = {w: frozenset(b for b, some in enumerate(before) if w in some) for w in workers}
    after = choose_holders(blocks, workers, copies, held)
    assert [set(some) for some in after] == [set(some) for some in before]


@given(draw_situations(), st.data())
def test_a_death_moves_few_blocks_beyond_those_of_the_dead_worker(situation, data):
    blocks, workers, copies, _ = situation
    if len(workers) < 2:
        return
    before = choose_holders(blocks, workers, copies, {})
    held = {w: frozenset(b for b, some in enumerate(before) if w in some) for w in workers}
    dead = data.draw(st.sampled_from(workers))
    survivors = tuple(worker for worker in workers if worker != dead)
    after = choose_holders(blocks, survivors, copies, held)
    moved = sum(worker not in before[b] for b, some in enumerate(after) for worker in some)
    # Every copy of the dead worker, and at most one block per survivor, to keep the load even.
    assert moved <= len(held[dead]) + len(survivors) * min(copies, len(survivors))


@st.composite
def draw_wants(draw):
    blocks = draw(st.integers(1, 15))
    items = st.frozensets(st.integers(0, blocks - 1))
    held = draw(st.dictionaries(st.integers(0, 6), items, min_size=1))
    wanted = draw(st.dictionaries(st.integers(0, 8), items))
    return {worker: sorted(some - held.get(worker, frozenset())) for worker, some in wanted.items()}, held


@given(draw_wants())
def test_every_wanted_block_comes_once_from_a_holder(situation):
    wanted, held = situation
    plan = choose_senders(wanted, held)
    for receiver, blocks in wanted.items():
        got = [(sender, block) for sender, some in plan.get(receiver, {}).items() for block in some]
        available = [b for b in blocks if any(b in some for w, some in held.items() if w != receiver)]
        assert sorted(block for _, block in got) == available
        assert all(block in held[sender] and sender != receiver for sender, block in got)


@given(blocks=st.integers(1, 30), holders=st.integers(1, 5), receivers=st.integers(1, 3))
def test_senders_that_hold_all_blocks_share_the_work_evenly(blocks, holders, receivers):
    held = {worker: frozenset(range(blocks)) for worker in range(holders)}
    wanted = {100 + i: list(range(blocks)) for i in range(receivers)}
    sent = Counter(dict.fromkeys(held, 0))
    for by_sender in choose_senders(wanted, held).values():
        sent.update({sender: len(some) for sender, some in by_sender.items()})
    assert max(sent.values()) - min(sent.values()) <= 1


@given(blocks=st.integers(1, 40), count=st.integers(1, 8))
def test_blocks_are_spread_in_even_contiguous_runs(blocks, count):
    workers = tuple(range(10, 10 + count))
    summing = spread_blocks(blocks, workers)
    assert list(summing) == sorted(summing)
    each = Counter(summing)
    assert max(each.values()) <= -(-blocks // count)
    assert min(each[worker] for worker in workers) >= blocks // count


@st.composite
def draw_node_situations(draw):
    """Draw a situation on up to four nodes."""
    blocks, workers, copies, held = draw(draw_situations())
    return blocks, workers, copies, held, {worker: draw(st.sampled_from("abcd")) for worker in workers}


@given(draw_node_situations())
def test_the_copies_of_a_block_are_on_as_many_nodes_as_possible(situation):
    blocks, workers, copies, held, nodes = situation
    for some in choose_holders(blocks, workers, copies, held, nodes):
        assert len(set(some)) == len(some) == min(copies, len(workers))
        assert len({nodes[worker] for worker in some}) == min(len(some), len(set(nodes.values())))


@given(draw_node_situations())
def test_the_load_is_as_even_as_the_nodes_allow(situation):
    blocks, workers, copies, held, nodes = situation
    limits = plan_loads(blocks, min(copies, len(workers)), Counter(nodes.values())).limits
    for known, more in (({}, 1), (held, 4)):
        holders = choose_holders(blocks, workers, copies, known, nodes)
        kept = Counter(worker for some in holders for worker in some)
        assert all(kept[worker] <= limits[nodes[worker]] + more for worker in workers)
        assert max(Counter(some[0] for some in holders).values()) <= -(-blocks // len(workers))


@given(draw_node_situations())
def test_the_planned_load_has_room_for_all_copies(situation):
    blocks, workers, copies, _, nodes = situation
    copies = min(copies, len(workers))
    sizes = Counter(nodes.values())
    plan = plan_loads(blocks, copies, sizes)
    assert sum(plan.limits[node] * size for node, size in sizes.items()) >= blocks * copies
    assert len(plan.everywhere) <= max(copies, len(sizes))
    # Nothing is uneven on nodes of one size.
    if len(set(sizes.values())) == 1:
        assert set(plan.limits.values()) == {-(-blocks * copies // len(workers))}


@given(draw_node_situations())
def test_the_same_members_on_nodes_move_no_block(situation):
    blocks, workers, copies, _, nodes = situation
    before = choose_holders(blocks, workers, copies, {}, nodes)
    held = {w: frozenset(b for b, some in enumerate(before) if w in some) for w in workers}
    after = choose_holders(blocks, workers, copies, held, nodes)
    assert [set(some) for some in after] == [set(some) for some in before]


@given(draw_node_situations(), st.data())
def test_the_loss_of_a_node_leaves_a_copy_and_moves_few_others(situation, data):
    blocks, workers, copies, _, nodes = situation
    before = choose_holders(blocks, workers, copies, {}, nodes)
    held = {w: frozenset(b for b, some in enumerate(before) if w in some) for w in workers}
    lost = data.draw(st.sampled_from(sorted(set(nodes.values()))))
    survivors = tuple(worker for worker in workers if nodes[worker] != lost)
    if not survivors or copies == 1:
        return
    assert all(any(worker in survivors for worker in some) for some in before)
    after = choose_holders(blocks, survivors, copies, held, nodes)
    moved = sum(worker not in before[b] for b, some in enumerate(after) for worker in some)
    copied = min(copies, len(survivors))
    kept = sum(worker in survivors for some in before for worker in some)
    # What the node held, and few others, to keep the load even.
    assert moved <= blocks * copied - kept + 2 * len(survivors) * copied


def test_the_single_worker_of_a_node_holds_a_copy_of_everything():
    nodes = {0: "a", 1: "a", 2: "a", 3: "b"}
    for some in choose_holders(12, (0, 1, 2, 3), 2, {}, nodes):
        assert 3 in some
    assert plan_loads(12, 2, Counter(nodes.values())).limits == {"a": 4, "b": 12}


@given(draw_situations())
def test_the_holders_are_those_that_a_search_among_all_workers_finds(situation):
    blocks, workers, copies, held = situation
    expected = search_holders(blocks, workers, copies, held)
    limit = -(-blocks * min(copies, len(workers)) // len(workers))
    kept = Counter(worker for some in expected for worker in some)
    # A larger surplus is moved afterwards.
    assume(max(kept.values()) <= limit + TOLERATED_BLOCKS)
    assert choose_holders(blocks, workers, copies, held) == expected


def test_a_joiner_takes_nearly_its_share_although_others_hold_everything():
    everything = frozenset(range(48))
    holders = choose_holders(48, (0, 1, 3), 2, {0: everything, 1: everything})
    kept = Counter(worker for some in holders for worker in some)
    assert kept == {0: 34, 1: 34, 3: 28}


def search_holders(blocks, workers, copies, held):
    """Choose holders as `choose_holders` does, but compare all workers for each block."""
    owned, kept = Counter(), Counter()
    chosen = []

    def find_best(candidates, block, loads, first):
        def rank(worker):
            distance = (workers.index(worker) - workers.index(first)) % len(workers)
            return block not in held.get(worker, ()), loads[worker], distance

        return min(candidates, key=rank)

    for block in range(blocks):
        free = [w for w in workers if owned[w] < -(-blocks // len(workers))]
        owner = find_best(free, block, owned, workers[block * len(workers) // blocks])
        owned[owner] += 1
        kept[owner] += 1
        chosen.append([owner])
    for _ in range(min(copies, len(workers)) - 1):
        for block, holders in enumerate(chosen):
            free = [w for w in workers if w not in holders]
            within = [w for w in free if kept[w] < -(-blocks * min(copies, len(workers)) // len(workers))]
            backup = find_best(within or free, block, kept, holders[0])
            kept[backup] += 1
            holders.append(backup)
    return tuple(map(tuple, chosen))


@given(blocks=st.integers(1, 60), workers=st.integers(1, 8))
def test_neighbouring_blocks_are_summed_by_different_workers(blocks, workers):
    members = tuple(range(10, 10 + workers))
    owners = stripe_blocks(blocks, members)
    assert all(len(set(owners[i : i + workers])) == len(owners[i : i + workers]) for i in range(blocks))
    assert choose_owners((members,) * blocks, members) == owners


@given(blocks=st.integers(1, 60), workers=st.integers(1, 8), copies=st.integers(1, 4))
def test_the_holders_of_blocks_sum_equally_many(blocks, workers, copies):
    members = tuple(range(workers))
    holders = choose_holders(blocks, members, copies, {})
    owners = choose_owners(holders, members)
    assert all(owner in some for owner, some in zip(owners, holders, strict=True))
    most = -(-blocks // workers)
    assert max(owners.count(worker) for worker in members) <= most + (copies > 1)
