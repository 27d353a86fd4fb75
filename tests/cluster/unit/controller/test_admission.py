"""The largest number of workers in a spec."""

import pytest

from elastane.cluster.controller.admission import MOST_WORKERS, check_spec, scale_policy
from elastane.cluster.nouns.jobs import ElasticPolicy, JobSpec
from elastane.common.errors import BadField

MORE = MOST_WORKERS + 1


def job(policy: ElasticPolicy) -> JobSpec:
    return JobSpec(name="train", team="vision", script="/train.py", elastic_policy=policy)


RANGE = ElasticPolicy(min_replicas=1, max_replicas=4)
TOO_MANY = {
    "a range": ElasticPolicy(min_replicas=1, max_replicas=MORE),
    "a claim": ElasticPolicy(min_replicas=MORE, max_replicas=MORE),
    "a list": ElasticPolicy(replica_discrete_values=(1, MORE)),
    "a range that was scaled": scale_policy(RANGE, max_replicas=MORE),
    "a claim that was scaled": scale_policy(RANGE, min_replicas=MORE, max_replicas=MORE),
    "a list that was scaled": scale_policy(RANGE, replica_discrete_values=(1, MORE)),
}


@pytest.mark.parametrize("how", TOO_MANY)
def test_no_policy_allows_more_than_the_most_workers(how: str) -> None:
    with pytest.raises(BadField, match=f"{MORE} is more than {MOST_WORKERS}") as refused:
        check_spec(job(TOO_MANY[how]))
    assert refused.value.field.endswith("replicaDiscreteValues" if "list" in how else "maxReplicas")


def test_the_most_workers_are_allowed_as_a_range_and_as_a_list() -> None:
    check_spec(job(ElasticPolicy(max_replicas=MOST_WORKERS)))
    check_spec(job(ElasticPolicy(replica_discrete_values=(1, MOST_WORKERS))))
