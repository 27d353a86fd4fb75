"""The figures of the pilot, and its scenario."""

from pathlib import Path

import pytest
from pilot.figures import count_reversals, find_most_beyond, list_sizes
from pilot.record import Observation
from pilot.scenario import Scenario, compute_capacity, compute_device_s, fix_size, read_scenario

from elastane.cluster.controller.admission import check_priority_class, check_spec
from elastane.cluster.controller.cluster.declarations import check_config
from elastane.common.document_parser import parse_document
from elastane.common.errors import BadInput

ROOT = Path(__file__).parents[3]
SHARED = ROOT / "benchmarks" / "pilot" / "shared.yaml"


def make_scenario(**changes):
    written = {
        "name": "small",
        "microbatchS": 0.1,
        "virtualRanks": 4,
        "timeoutS": 60,
        "cluster": {},
        "jobs": [],
    }
    return parse_document(written | changes, Scenario, "scenario")


def make_observations(job, *sizes):
    return [
        Observation(at_s=float(at), job=job, state="running", granted={"p": n}, uses={"p": n}, step=0)
        for at, n in enumerate(sizes)
    ]


def test_a_controller_accepts_the_scenario_in_both_arms():
    shared = read_scenario(SHARED)
    check_config(shared.cluster)
    priorities = {one.name for one in shared.cluster.priorities}
    for job in shared.jobs:
        spec = shared.make_spec(job, ROOT, {})
        for one in (spec, fix_size(spec, job.ideal)):
            check_spec(one)
            check_priority_class(one, priorities)
        assert Path(spec.script).is_file()


def test_a_fixed_job_has_one_size():
    shared = read_scenario(SHARED)
    policy = fix_size(shared.make_spec(shared.jobs[0], ROOT, {}), 4).elastic_policy
    assert (policy.min_replicas, policy.max_replicas, policy.replica_discrete_values) == (4, 4, ())


def test_capacity_is_the_declared_number_limited_by_reports_and_reservations():
    pools = [
        {"name": "owned", "device": "cpu", "devices": 6},
        {"name": "spot", "device": "cpu", "devices": 4},
    ]
    reserve = {"name": "r", "pool": "owned", "devices": 2, "fromS": 10, "untilS": 20, "announcedAheadS": 5}
    found = compute_capacity(
        make_scenario(
            cluster={"pools": pools},
            events=[
                {"at": 0, "reserve": reserve},
                {"at": 5, "capacity": {"pool": "spot", "devices": 1}},
                {"at": 8, "capacity": {"pool": "spot", "devices": 9}},
            ],
        )
    )
    assert found == {"owned": ((0, 6), (10, 4), (20, 6)), "spot": ((0, 4), (5, 1), (8, 4))}
    assert compute_device_s(found["owned"], 30) == 60 + 40 + 60
    assert compute_device_s(found["owned"], 12) == 60 + 8
    assert compute_device_s(found["spot"], 4) == 16


def test_only_resizes_that_are_undone_within_the_time_count():
    assert count_reversals([(0, 2), (10, 3), (12, 2)], within_s=5) == 1
    assert count_reversals([(0, 2), (10, 3), (16, 2)], within_s=5) == 0
    assert count_reversals([(0, 2), (10, 3), (12, 4)], within_s=5) == 0


def test_starts_and_ends_do_not_count_as_resizes():
    assert count_reversals([(0, 0), (1, 2), (2, 0), (3, 2)], within_s=5) == 0


def test_sizes_are_listed_once_per_change():
    assert list_sizes(make_observations("a", 0, 2, 2, 3), "a") == [(0, 0), (1, 2), (3, 3)]
    assert list_sizes(make_observations("a", 2), "b") == []


def test_devices_beyond_those_of_a_pool_are_found_unless_they_are_leaving():
    capacity = {"p": ((0.0, 4),)}
    assert find_most_beyond(make_observations("a", 4, 5, 5, 4), capacity) == 1
    assert find_most_beyond(make_observations("a", 4, 4, 3), capacity) == 0
    # One round may have observed one job before a change and the other after it.
    assert find_most_beyond(make_observations("a", 4, 5, 4, 4), capacity) == 0
    assert find_most_beyond(make_observations("a", 4, 4, 4, 4), {"p": ((0.0, 4), (1.0, 2))}) == 0


def test_a_line_with_two_events_is_refused(tmp_path):
    file = tmp_path / "s.yaml"
    file.write_text(
        "{name: s, microbatchS: 1, virtualRanks: 1, timeoutS: 1, cluster: {}, jobs: [], "
        "events: [{at: 3, price: {pool: p, price: 1}, capacity: {pool: p, devices: 1}}]}"
    )
    with pytest.raises(BadInput, match="at 3: 2 events in one line"):
        read_scenario(file)
