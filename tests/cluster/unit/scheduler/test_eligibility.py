"""The pools of an unmodified script: in an engine all its workers are those of one agent."""

import pytest

from elastane.cluster.nouns.jobs import ElasticPolicy, JobSpec, WorkerResources
from elastane.cluster.nouns.pools import Pool
from elastane.cluster.scheduler.eligibility import find_pool_groups


def make_pool(name: str, *, engine: str = "hpc", agent: str = "") -> Pool:
    options = {"workersPerAgent": agent} if agent else {}
    return Pool(name=name, device="gpu", devices=64, devices_per_node=8, engine=engine, options=options)


def find_pools(
    low: int, high: int, *pools: Pool, contract: str = "torchrun", devices: int | None = 1, processes: int = 1
):
    spec = JobSpec(
        name="j",
        team="t",
        contract=contract,
        processes=processes,
        resources_per_worker=WorkerResources(devices=devices),
        elastic_policy=ElasticPolicy(min_replicas=low, max_replicas=high),
    )
    return [[pools[i].name for i in group.for_minimum] for group in find_pool_groups(spec, pools)]


@pytest.mark.parametrize(
    ("low", "high", "agent", "devices", "fits"),
    [
        (1, 1, "", 1, True),
        (2, 2, "", 1, False),
        (4, 4, "4", 1, True),
        (5, 5, "4", 1, False),
        # The size of an agent cannot change.
        (1, 4, "4", 1, False),
        # A node has eight devices.
        (16, 16, "16", 1, False),
        (4, 4, "4", 2, True),
        (4, 4, "4", 3, False),
    ],
)
def test_all_workers_of_an_unmodified_script_fit_one_agent(low, high, agent, devices, fits):
    pools = [make_pool("a", agent=agent)]
    assert find_pools(low, high, *pools, devices=devices) == ([["a"]] if fits else [])
    # So do workers of several processes, which take a device each.
    gangs = find_pools(low, high, *pools, contract="elastane", devices=2 * devices, processes=2)
    assert gangs == find_pools(low, high, *pools, devices=2 * devices)
    # A script that calls elastane.join() has agents on several machines.
    assert find_pools(low, high, *pools, contract="elastane", devices=devices) == [["a"]]


def test_an_unmodified_script_is_divided_among_no_pools_of_an_engine():
    pools = [make_pool("a", agent="4"), make_pool("b", agent="4"), make_pool("c", engine="")]
    assert sorted(find_pools(4, 4, *pools)) == [["a"], ["b"], ["c"]]
    assert sorted(find_pools(4, 4, *pools, contract="elastane")) == [["a", "b"], ["c"]]
    # On the controller's machine pools are only names.
    assert find_pools(1, 4, make_pool("c", engine=""), make_pool("d", engine="")) == [["c", "d"]]


def test_all_processes_of_a_worker_are_on_one_machine():
    here = make_pool("c", engine="")
    alone = {"contract": "elastane", "devices": None}
    assert find_pools(1, 4, here, processes=8, **alone) == [["c"]]
    assert find_pools(1, 1, make_pool("a"), processes=8, **alone) == [["a"]]
    # Sixteen devices are two nodes: a worker of one process may have both, and sixteen processes may not.
    assert find_pools(1, 4, here, processes=16, **alone) == []
    assert find_pools(1, 4, here, contract="elastane", devices=16) == [["c"]]
