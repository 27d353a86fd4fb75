"""How many devices of a machine agents may use."""

import pytest

from elastane.cluster.engines.slurm.job_queue import parse_queue
from elastane.cluster.engines.slurm.machines import (
    count_gres,
    list_pool_nodes,
    meets_constraint,
    parse_machines,
    parse_reserved_nodes,
)
from elastane.cluster.engines.slurm.options import SlurmPool

GPU = SlurmPool(partition="main", gres="gpu")


def row(
    name="n1",
    partition="main*",
    state="mixed",
    cpus="3/5/0/8",
    gres="gpu:a100:4(S:0-1)",
    busy="gpu:a100:3(IDX:0,2-3)",
    features="a,b",
) -> str:
    return "".join(f"{field:24}|" for field in (name, partition, state, cpus, gres, busy, features))


def job(node="n1", cpus=1, devices="gres:gpu:1", state="RUNNING", agent="c1-1") -> str:
    fields = ("1", state, "0", "NONE", node, str(cpus), devices, f"elastane-{agent}", "None")
    return "".join(f"{field:20}|" for field in fields)


def count(pool: SlurmPool, *rows: str, own: tuple[str, ...] = ()) -> dict[str, int]:
    jobs = parse_queue("\n".join(own), "c1")
    found = list_pool_nodes("pool", pool, parse_machines("\n".join(rows)), jobs)
    assert all(node.pool == "pool" for node in found)
    return {node.name: node.devices for node in found}


def test_devices_that_others_hold_are_subtracted_and_those_of_our_agents_are_not():
    assert count(GPU, row()) == {"n1": 1}
    assert count(GPU, row(), own=(job(), job(devices="gres/gpu:a100:1", state="COMPLETING"))) == {"n1": 3}
    assert count(GPU, row(), own=(job(node="n2"), job(state="PENDING"), job(state="COMPLETED"))) == {"n1": 1}
    # Slurm shows allocations a little late.
    assert count(GPU, row(busy="gpu:a100:0(IDX:N/A)"), own=(job(),)) == {"n1": 4}


def test_without_a_resource_processors_are_devices():
    assert count(SlurmPool(partition="main"), row()) == {"n1": 5}
    pool = SlurmPool(partition="main", cpus_per_device=2)
    assert count(pool, row(), own=(job(cpus=2, devices="N/A"),)) == {"n1": 3}


def test_devices_without_free_processors_cannot_be_used():
    pool = SlurmPool(partition="main", gres="gpu", cpus_per_device=4)
    assert count(pool, row(cpus="6/2/0/8", busy="gpu:a100:0(IDX:N/A)")) == {}
    assert count(pool, row(cpus="3/5/0/8", busy="gpu:a100:0(IDX:N/A)")) == {"n1": 1}


@pytest.mark.parametrize(
    "state",
    [
        "down",
        "idle+drain",
        "mixed+drain",
        "idle+not_responding",
        "down+not_responding",
        "mixed+fail",
        "unknown",
        "future",
        "idle+maint",
        "idle+reserved",
        "allocated+reboot_requested",
        "dancing",
        "",
    ],
)
def test_machines_on_which_no_job_begins_are_left_out(state):
    assert count(GPU, row(state=state), row(name="n2")) == {"n2": 1}


@pytest.mark.parametrize(
    "state", ["idle", "allocated", "mixed+completing", "idle+cloud+powered_down", "mixed+planned"]
)
def test_other_machines_are_listed(state):
    assert count(GPU, row(state=state)) == {"n1": 1}


def test_machines_of_a_reservation_can_be_used_in_it():
    pool = SlurmPool(partition="main", gres="gpu", reservation="held")
    assert count(pool, row(state="idle+reserved"), row(name="n2", state="idle+drain")) == {"n1": 1}


def test_without_a_partition_the_default_one_counts():
    rows = (row(), row(name="n2", partition="urgent"))
    assert count(SlurmPool(gres="gpu"), *rows) == {"n1": 1}
    # Only Slurm knows the nodes of a partition that is named: all rows are of it.
    assert count(GPU, *rows) == {"n1": 1, "n2": 1}


def test_a_machine_in_two_partitions_of_a_pool_counts_once():
    assert count(GPU, row(), row(partition="urgent")) == {"n1": 1}


@pytest.mark.parametrize(
    ("constraint", "met"),
    [("", True), ("a", True), ("a&b", True), ("a&c", False), ("c|b", True), ("c|d", False), ("ab", False)],
)
def test_constraints_are_met_by_features(constraint, met):
    assert meets_constraint(frozenset({"a", "b"}), constraint) is met
    pool = SlurmPool(partition="main", gres="gpu", constraint=constraint)
    assert bool(count(pool, row())) is met


def test_excluded_machines_are_left_out():
    pool = SlurmPool(partition="main", gres="gpu", exclude="n1,n3")
    assert count(pool, row(), row(name="n2"), row(name="n3")) == {"n2": 1}


@pytest.mark.parametrize(
    ("text", "wanted", "units"),
    [
        ("gpu:a100:4(S:0-1),nic:2", "gpu", 4),
        ("gpu:a100:4(S:0-1),nic:2", "nic", 2),
        ("gpu:a100:2,gpu:v100:1", "gpu", 3),
        ("gpu:a100:2,gpu:v100:1", "gpu:v100", 1),
        ("gpu:2", "gpu", 2),
        ("gpu:2", "gpu:a100", 0),
        ("gpu", "gpu", 1),
        ("gpu:a100", "gpu:a100", 1),
        ("gpu:a100:0(IDX:N/A)", "gpu", 0),
        ("gpu:a100:3(IDX:0,2-3),gpu:v100:1(IDX:4)", "gpu", 4),
        ("gres:gpu:a100:2", "gpu:a100", 2),
        ("gres/gpu:a100=2", "gpu:a100", 2),
        ("gres/gpu:2,gres/nic:1", "gpu", 2),
        ("(null)", "gpu", 0),
        ("N/A", "gpu", 0),
        ("", "gpu", 0),
        ("gpux:3", "gpu", 0),
        ("gpu:a100:-1", "gpu", 1),
        ("gpu:a100:99999999999999", "gpu", 1),
        ("gpu:::", "gpu", 1),
    ],
)
def test_units_of_a_resource_are_counted(text, wanted, units):
    assert count_gres(text, wanted) == units


def test_an_agent_that_asked_for_any_type_counts_for_each():
    assert count_gres("gres:gpu:2", "gpu:a100", untyped=True) == 2


@pytest.mark.parametrize(
    "bad",
    [
        "",
        "sinfo: error",
        "|" * 7,
        row(name="n1;x"),
        row(cpus="a/b"),
        row(cpus=""),
        row(name=""),
        row() + "x|",
    ],
)
def test_an_unreadable_row_costs_only_itself(bad):
    assert count(GPU, bad, row(name="n2")) == {"n2": 1}


def test_the_machines_of_a_reservation_are_read():
    text = "ReservationName=held StartTime=x Nodes=n[1-3],m7 NodeCnt=4 Users=root"
    assert parse_reserved_nodes(text) == "n[1-3],m7"
    assert parse_reserved_nodes("ReservationName=held Nodes=(null)") == ""
    assert parse_reserved_nodes("") == ""
