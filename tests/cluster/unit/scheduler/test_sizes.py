"""Legal sizes: the user's, or those that may be faster than the ones below."""

import pytest

from elastane.cluster.nouns.jobs import ElasticPolicy
from elastane.cluster.scheduler.sizes import (
    find_largest_size,
    find_next_size,
    find_smallest_size,
    list_legal_sizes,
    round_down_to_size,
)

NODE = 8


def list_sizes(low, high, virtual_ranks=0, node=NODE, **policy):
    policy = ElasticPolicy(min_replicas=low, max_replicas=high, **policy)
    return [size for run in list_legal_sizes(policy, node, virtual_ranks) for size in run]


@pytest.mark.parametrize(
    ("low", "high", "virtual_ranks", "sizes"),
    [
        (1, 5, 0, [1, 2, 3, 4, 5]),
        (6, 30, 0, [6, 7, 8, 16, 24]),
        (11, 30, 0, [11, 16, 24]),
        (1, 8, 8, [1, 2, 3, 4, 8]),
        (1, 7, 8, [1, 2, 3, 4]),
        (3, 8, 8, [3, 4, 8]),
        (1, 64, 64, [1, 2, 3, 4, 5, 6, 7, 8, 16, 24, 32, 64]),
        (1, 12, 12, [1, 2, 3, 4, 6, 12]),
        (5, 5, 8, [5]),
    ],
)
def test_sizes_fill_nodes_and_lower_the_largest_share_of_the_virtual_ranks(low, high, virtual_ranks, sizes):
    assert list_sizes(low, high, virtual_ranks) == sizes


def test_whole_nodes_are_legal_if_they_lower_the_largest_share():
    assert list_sizes(1, 64, 64, node=4) == [1, 2, 3, 4, 8, 12, 16, 24, 32, 64]
    assert list_sizes(1, 64, 256, node=4) == [1, 2, 3, *range(4, 33, 4), 40, 44, 52, 64]


def test_the_sizes_of_the_user_win():
    assert list_sizes(3, 14, 64, replica_increment_step=5) == [3, 8, 13]
    assert list_sizes(1, 14, 64, replica_discrete_values=(1, 9, 14)) == [1, 9, 14]


@pytest.mark.parametrize("virtual_ranks", [0, 64])
def test_sizes_are_found_in_order(virtual_ranks):
    sizes = list_legal_sizes(ElasticPolicy(min_replicas=2, max_replicas=64), NODE, virtual_ranks)
    listed = [size for run in sizes for size in run]
    assert (find_smallest_size(sizes), find_largest_size(sizes)) == (2, 64)
    for workers in range(70):
        assert round_down_to_size(sizes, workers) == max((n for n in listed if n <= workers), default=0)
        assert find_next_size(sizes, workers) == min((n for n in listed if n > workers), default=None)


def test_a_job_of_a_billion_workers_costs_no_more_than_a_small_one():
    huge = ElasticPolicy(min_replicas=1, max_replicas=10**9)
    assert find_next_size(list_legal_sizes(huge, NODE, 0), 10**8) == 10**8 + NODE
    assert find_largest_size(list_legal_sizes(huge, NODE, 10**6)) == 10**6
