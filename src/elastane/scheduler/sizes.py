"""The legal sizes of a job, in workers."""

from bisect import bisect_right

from elastane.api.jobs import ElasticPolicy


def find_smallest_size(policy: ElasticPolicy) -> int:
    """Return the smallest legal size: the minimum that a job asks for."""
    return policy.replica_discrete_values[0] if policy.replica_discrete_values else policy.min_replicas


def find_largest_size(policy: ElasticPolicy) -> int:
    """Return the largest legal size."""
    return round_down_to_size(
        policy, policy.replica_discrete_values[-1] if policy.replica_discrete_values else policy.max_replicas
    )


def round_down_to_size(policy: ElasticPolicy, at_most: int) -> int:
    """Return the largest legal size up to ``at_most``; 0 if there is none."""
    if policy.replica_discrete_values:
        place = bisect_right(policy.replica_discrete_values, at_most)
        return policy.replica_discrete_values[place - 1] if place else 0
    at_most = min(at_most, policy.max_replicas)
    if at_most < policy.min_replicas:
        return 0
    return at_most - (at_most - policy.min_replicas) % policy.replica_increment_step


def find_next_size(policy: ElasticPolicy, workers: int) -> int | None:
    """Return the next legal size above ``workers``; None if there is none."""
    if policy.replica_discrete_values:
        place = bisect_right(policy.replica_discrete_values, workers)
        values = policy.replica_discrete_values
        return values[place] if place < len(values) else None
    if workers < policy.min_replicas:
        return policy.min_replicas
    step = policy.replica_increment_step
    size = workers + step - (workers - policy.min_replicas) % step
    return size if size <= policy.max_replicas else None
