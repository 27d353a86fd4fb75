"""Every virtual rank is assigned to one worker, in proportion to speed and in the fewest nodes."""

from itertools import accumulate, islice, product

from hypothesis import given
from hypothesis import strategies as st

from elastane.run.protocol.shares import assign_missing, assign_ranks, assign_shares
from elastane.run.protocol.tree import cover, expand_spans

speeds = st.lists(st.sampled_from((0.25, 0.5, 0.7071, 1.0, 1.4142, 2.0, 3.0)), min_size=1, max_size=7)


def count_ranks(size, speeds):
    """Return the number of virtual ranks in the share of each worker."""
    return [stop - start for start, stop in assign_shares(size, tuple(speeds))]


@given(size=st.integers(0, 64), speeds=speeds)
def test_shares_tile_the_virtual_ranks_in_the_order_of_the_workers(size, speeds):
    shares = assign_shares(size, tuple(speeds))
    assert len(shares) == len(speeds)
    assert [rank for start, stop in shares for rank in range(start, stop)] == list(range(size))


def compute_quotas(size, speeds):
    """Return proportional quotas, each at least one if there are enough virtual ranks."""
    least = 1.0 if size >= len(speeds) else 0.0
    low, high = 0.0, size / min(speeds)
    for _ in range(200):
        factor = (low + high) / 2
        low, high = (factor, high) if sum(max(least, factor * s) for s in speeds) < size else (low, factor)
    return [max(least, high * speed) for speed in speeds]


@given(size=st.integers(0, 64), speeds=speeds)
def test_a_share_is_the_quota_rounded_down_or_up(size, speeds):
    for count, quota in zip(count_ranks(size, speeds), compute_quotas(size, speeds), strict=True):
        assert abs(count - quota) < 1


@given(size=st.integers(1, 64), speeds=st.lists(st.floats(1 / 16, 4), min_size=1, max_size=9))
def test_every_worker_gets_a_virtual_rank_if_there_are_enough(size, speeds):
    assert size < len(speeds) or min(count_ranks(size, speeds)) >= 1


@given(log_size=st.integers(0, 6), log_workers=st.integers(0, 3))
def test_with_powers_of_two_each_share_is_one_node(log_size, log_workers):
    size, workers = 2**log_size, 2 ** min(log_workers, log_size)
    for start, stop in assign_shares(size, (1.0,) * workers):
        assert len(cover(range(start, stop), size)) == 1


@given(size=st.integers(1, 14), speeds=st.lists(st.sampled_from((0.5, 1.0, 2.0)), min_size=1, max_size=4))
def test_no_other_rounding_has_fewer_nodes(size, speeds):
    def count_nodes(counts):
        place, total = 0, 0
        for count in counts:
            total += len(cover(range(place, place + count), size))
            place += count
        return total

    choices = [{int(q + 1e-9), int(q + 1 - 1e-9)} for q in compute_quotas(size, speeds)]
    fewest = min(count_nodes(counts) for counts in product(*choices) if sum(counts) == size)
    assert count_nodes(count_ranks(size, speeds)) == fewest


@given(
    size=st.integers(1, 14),
    nodes=st.lists(st.integers(1, 2), min_size=1, max_size=3),
    speed=st.sampled_from((0.5, 1.0, 2.0)),
)
def test_no_other_rounding_has_fewer_nodes_of_the_tree_for_the_machines(size, nodes, speed):
    """First the machines have the fewest nodes of the tree, then their workers."""
    speeds = (speed, *(1.0,) * (sum(nodes) - 1))

    def count_nodes(counts):
        place, machines, workers = 0, 0, 0
        left = iter(counts)
        for mates in nodes:
            own = list(islice(left, mates))
            machines += len(cover(range(place, place + sum(own)), size))
            for count in own:
                workers += len(cover(range(place, place + count), size))
                place += count
        return machines, workers

    choices = [{int(q + 1e-9), int(q + 1 - 1e-9)} for q in compute_quotas(size, speeds)]
    possible = [counts for counts in product(*choices) if sum(counts) == size]
    counts = [stop - start for start, stop in assign_shares(size, speeds, tuple(nodes))]
    assert tuple(counts) in possible
    assert count_nodes(counts)[0] == min(count_nodes(others)[0] for others in possible)
    borders = list(accumulate(nodes))
    same = [c for c in possible if [sum(c[:b]) for b in borders] == [sum(counts[:b]) for b in borders]]
    assert count_nodes(counts)[1] == min(count_nodes(others)[1] for others in same)


@st.composite
def draw_missing(draw):
    size = draw(st.integers(1, 24))
    workers = draw(st.integers(1, 5))
    owner = draw(st.lists(st.integers(-1, workers), min_size=size, max_size=size))
    assigned = {w: frozenset(r for r in range(size) if owner[r] == w) for w in range(workers + 1)}
    own = draw(st.lists(st.sampled_from((0.5, 1.0, 2.0)), min_size=workers, max_size=workers))
    return size, assigned, dict(enumerate(own))


@given(draw_missing())
def test_all_missing_virtual_ranks_are_assigned_once(situation):
    size, assigned, speeds = situation
    added = assign_missing(size, assigned, speeds)
    missing = set(range(size)) - set().union(*assigned.values())
    ranks = [rank for some in added.values() for rank in expand_spans(some)]
    assert sorted(ranks) == sorted(missing)
    assert added.keys() <= speeds.keys()


@given(draw_missing())
def test_no_worker_finishes_earlier_by_passing_on_a_virtual_rank(situation):
    size, assigned, speeds = situation
    added = assign_missing(size, assigned, speeds)
    load = {w: len(assigned[w]) + len(expand_spans(added.get(w, ()))) for w in speeds}
    for giver in added:
        done = load[giver] / speeds[giver]
        assert all((load[w] + 1) / speeds[w] >= done - 1e-9 for w in speeds)


@given(data=st.data(), groups=st.integers(1, 16), log_together=st.integers(0, 3))
def test_virtual_ranks_that_are_computed_together_have_one_worker(data, groups, log_together):
    together = 2**log_together
    size = groups * together
    workers = data.draw(st.integers(1, 4))
    speeds, nodes = dict.fromkeys(range(workers), 1.0), dict.fromkeys(range(workers), "")
    assigned: dict[int, frozenset[int]] = {}
    # The survivors of a death keep what they have, and share what the dead worker had.
    if data.draw(st.booleans()):
        first = assign_ranks(size, {**speeds, 9: 1.0}, {**nodes, 9: ""}, {}, frozenset(), together)
        assigned = {worker: first[worker] for worker in speeds}
    ranks = assign_ranks(size, speeds, nodes, assigned, frozenset(), together)
    assert sorted(rank for some in ranks.values() for rank in some) == list(range(size))
    for worker, some in ranks.items():
        assert some >= assigned.get(worker, frozenset())
        assert all({rank - rank % together + n for n in range(together)} <= some for rank in some)
