"""Other limits for a job's size. Pure."""

import msgspec

from elastane.api.field_checks import make_field_error
from elastane.api.jobs import ElasticPolicy
from elastane.api.rest import ScaleRequest


def scaled(policy: ElasticPolicy, wanted: ScaleRequest) -> ElasticPolicy:
    """The policy with other limits; what comes out is still to be checked.

    Limits choose among listed sizes: those outside are taken off the list, whose ends are its limits.

    Raises:
        BadField: the list has no sizes for these limits.
    """
    values = policy.replica_discrete_values
    if wanted.replica_discrete_values is not None:
        values = wanted.replica_discrete_values
    low, high = (min(values), max(values)) if values else policy.limits
    least = low if wanted.min_replicas is None else wanted.min_replicas
    most = high if wanted.max_replicas is None else wanted.max_replicas
    if not values:
        return msgspec.structs.replace(
            policy, min_replicas=least, max_replicas=most, replica_discrete_values=()
        )
    within = tuple(value for value in values if least <= value <= most)
    if not within or least < low or most > high:
        lacks = "has no size" if low <= least and most <= high else "does not reach"
        raise make_field_error(
            "elasticPolicy.replicaDiscreteValues",
            f"{list(values)} {lacks} from {least} to {most}",
            f"write limits within {low} and {high}, or list all sizes that it may have from now on",
            means="the job has one of the listed sizes, and limits choose among them",
        )
    # Sizes are listed or come in steps, never both.
    return msgspec.structs.replace(
        policy,
        min_replicas=min(within),
        max_replicas=max(within),
        replica_increment_step=1,
        replica_discrete_values=within,
    )
