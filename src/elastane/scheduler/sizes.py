"""Which numbers of workers a job may have."""

from bisect import bisect_right

from elastane.api.jobs import ElasticPolicy


def smallest(policy: ElasticPolicy) -> int:
    """The job's claim."""
    return policy.replica_discrete_values[0] if policy.replica_discrete_values else policy.min_replicas


def maximum(policy: ElasticPolicy) -> int:
    """The largest legal size."""
    return largest(
        policy, policy.replica_discrete_values[-1] if policy.replica_discrete_values else policy.max_replicas
    )


def largest(policy: ElasticPolicy, at_most: int) -> int:
    """The largest legal size up to ``at_most``; 0 if there is none."""
    if policy.replica_discrete_values:
        place = bisect_right(policy.replica_discrete_values, at_most)
        return policy.replica_discrete_values[place - 1] if place else 0
    at_most = min(at_most, policy.max_replicas)
    if at_most < policy.min_replicas:
        return 0
    return at_most - (at_most - policy.min_replicas) % policy.replica_increment_step


def following(policy: ElasticPolicy, workers: int) -> int | None:
    """The next legal size above ``workers``; None if there is none."""
    if policy.replica_discrete_values:
        place = bisect_right(policy.replica_discrete_values, workers)
        values = policy.replica_discrete_values
        return values[place] if place < len(values) else None
    if workers < policy.min_replicas:
        return policy.min_replicas
    step = policy.replica_increment_step
    size = workers + step - (workers - policy.min_replicas) % step
    return size if size <= policy.max_replicas else None
