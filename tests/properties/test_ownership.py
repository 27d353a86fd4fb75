"""The holders of blocks: evenly spread, redundant, and stable over changes."""

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from elastane.protocol.ownership import choose_holders, choose_senders, spread_blocks


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


@given(draw_situations())
def test_the_holders_are_those_that_a_search_among_all_workers_finds(situation):
    blocks, workers, copies, held = situation
    assert choose_holders(blocks, workers, copies, held) == search_holders(blocks, workers, copies, held)


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
